// Devices, streams, events and random numbers: what torch asks of any accelerator.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

namespace npu_device {

// Makes `count` devices known to torch; to be called once.
void install_runtime(c10::DeviceIndex count);

c10::DeviceIndex device_count();
c10::DeviceIndex current_device();
void set_device(c10::DeviceIndex device);
// The index given, or that of the current device for -1; raises if there is no such device.
c10::DeviceIndex checked_index(c10::DeviceIndex device);

const at::Generator& default_generator(c10::DeviceIndex device);
// The CPU generator behind one of the device, for the kernels that do the work.
at::Generator host_generator(const at::Generator& generator);

}  // namespace npu_device
