// The memory of the device: host memory that says it is on "npu", counted for each device.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <cstdint>

namespace npu_device {

constexpr auto kNpu = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kMaxDevices = 16;

// Bytes and blocks of one device. Nothing is cached: what is reserved is what is allocated.
struct Usage {
  int64_t bytes = 0;
  int64_t peak_bytes = 0;
  int64_t blocks = 0;
  int64_t allocations = 0;
  int64_t freed = 0;
};

// Says how much each device has, and makes an allocator known to torch. With `statistics` it is a
// c10::DeviceAllocator, which torch.accelerator's memory functions need; torch_npu 2.9 has none.
void install_memory(int64_t bytes_per_device, bool statistics);

// The allocator that `install_memory` chose; it allocates on the current device.
c10::Allocator* allocator();
// Host memory that knows it is pinned.
c10::Allocator* pinned_allocator();
bool is_pinned(const void* pointer);

int64_t total_bytes();
Usage usage(c10::DeviceIndex device);
void reset_peak(c10::DeviceIndex device);
// The device of an address anywhere within its memory; raises for one that is not of a device.
c10::Device device_of(const void* pointer);

// A storage of `device` that keeps and counts the bytes of a CPU storage, without a copy.
c10::Storage adopt(const c10::Storage& host, c10::Device device);
// Gives a storage of the device room for `bytes`; what fits of the contents stays.
void resize_storage(c10::StorageImpl* storage, size_t bytes);

}  // namespace npu_device
