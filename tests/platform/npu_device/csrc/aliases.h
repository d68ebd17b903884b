// CPU tensors over the memory of tensors of the device, for as long as one operator runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

namespace npu_device {

// The same tensor always gets the same alias, and tensors that share a storage get aliases that
// share one, so that CPU kernels see every overlap.
class Aliases {
 public:
  // A tensor of the device gives a CPU tensor over its bytes, any other tensor gives itself.
  at::Tensor of(const at::Tensor& tensor);

  // Hands back what the kernel did to the aliases beyond their contents: new sizes, strides and
  // places, and storages that had to grow. To be called once, after the kernel.
  void commit();

  // What the operator returns for a CPU tensor that its kernel returned: the tensor that was
  // aliased, a view of it, or a tensor of `device` over the kernel's memory.
  at::Tensor returned(const at::Tensor& result, c10::Device device);

 private:
  struct Pair {
    at::Tensor ours;
    at::Tensor host;
  };
  struct Shared {
    c10::Storage ours;
    c10::Storage host;
    const void* data;
  };

  c10::Storage host_storage(const c10::Storage& ours);

  std::vector<Pair> pairs_;
  std::vector<Shared> storages_;
  std::vector<at::Tensor> others_;
};

}  // namespace npu_device
