// What the Python half (module.py) needs beyond torch.accelerator.

#include <torch/csrc/utils/pybind.h>

#include "memory.h"
#include "runtime.h"

namespace npu_device {
namespace {

void install(int devices, int64_t bytes_per_device, bool statistics) {
  TORCH_CHECK(device_count() == 0, "the device is installed already");
  install_memory(bytes_per_device, statistics);
  install_runtime(static_cast<c10::DeviceIndex>(devices));
}

pybind11::dict usage_of(int device) {
  const auto u = usage(checked_index(static_cast<c10::DeviceIndex>(device)));
  pybind11::dict result;
  result["bytes"] = u.bytes;
  result["peak_bytes"] = u.peak_bytes;
  result["blocks"] = u.blocks;
  result["allocations"] = u.allocations;
  result["freed"] = u.freed;
  return result;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("install", &install);
  module.def("device_count", &device_count);
  module.def("total_bytes", &total_bytes);
  module.def("usage", &usage_of);
  module.def("reset_peak",
             [](int device) { reset_peak(checked_index(static_cast<c10::DeviceIndex>(device))); });
  module.def("default_generator", [](int device) {
    return default_generator(static_cast<c10::DeviceIndex>(device));
  });
}

}  // namespace npu_device
