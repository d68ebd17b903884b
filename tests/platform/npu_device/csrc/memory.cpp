#include "memory.h"

#include <ATen/native/Resize.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "runtime.h"

namespace npu_device {
namespace {

constexpr size_t kAlignment = 64;

// What is allocated where. Leaked, so that memory may be freed when the process ends.
struct Ledger {
  struct Block {
    size_t size;
    c10::DeviceIndex device;
  };

  std::mutex mutex;
  int64_t total = 0;
  std::array<Usage, kMaxDevices> usage;
  std::map<const char*, Block> blocks;
  std::map<const char*, size_t> pinned;

  void add(const void* pointer, size_t size, c10::DeviceIndex device) {
    const std::lock_guard<std::mutex> lock(mutex);
    auto& u = usage[device];
    u.bytes += static_cast<int64_t>(size);
    u.peak_bytes = std::max(u.peak_bytes, u.bytes);
    u.blocks += 1;
    u.allocations += 1;
    blocks[static_cast<const char*>(pointer)] = {size, device};
  }

  void remove(const void* pointer) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto block = blocks.find(static_cast<const char*>(pointer));
    TORCH_INTERNAL_ASSERT(block != blocks.end(), "memory of npu freed twice");
    auto& u = usage[block->second.device];
    u.bytes -= static_cast<int64_t>(block->second.size);
    u.blocks -= 1;
    u.freed += 1;
    blocks.erase(block);
  }

  void check_room(size_t size, c10::DeviceIndex device) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto free = total - usage[device].bytes;
    TORCH_CHECK_WITH(
        OutOfMemoryError,
        static_cast<int64_t>(size) <= free,
        "NPU out of memory. Tried to allocate ", size, " bytes; NPU ", int(device), " has ",
        total, " bytes, of which ", free, " are free");
  }
};

Ledger& ledger() {
  static auto* it = new Ledger;
  return *it;
}

// The entry whose [start, start + size) holds the pointer.
template <class Map, class Size>
auto find_around(Map& map, const void* pointer, Size size) {
  const auto* address = static_cast<const char*>(pointer);
  auto next = map.upper_bound(address);
  if (next == map.begin()) {
    return map.end();
  }
  const auto entry = std::prev(next);
  return address < entry->first + size(entry->second) ? entry : map.end();
}

void free_block(void* pointer) {
  ledger().remove(pointer);
  std::free(pointer);
}

c10::DataPtr allocate_block(size_t size) {
  const auto device = current_device();
  if (size == 0) {
    return {nullptr, c10::Device(kNpu, device)};
  }
  ledger().check_room(size, device);
  void* pointer = std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
  TORCH_CHECK_WITH(OutOfMemoryError, pointer, "the host has no ", size, " bytes left");
  ledger().add(pointer, size, device);
  return {pointer, pointer, &free_block, c10::Device(kNpu, device)};
}

// As in torch_npu 2.9: torch.accelerator knows nothing of this memory.
struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override { return allocate_block(size); }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
};

// As in later releases of torch_npu: torch.accelerator's memory functions work.
struct MemoryWithStatistics final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override { return allocate_block(size); }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { reset_peak(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const auto total = static_cast<size_t>(total_bytes());
    return {total - static_cast<size_t>(usage(device).bytes), total};
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const auto u = usage(device);
    c10::CachingDeviceAllocator::DeviceStats stats;
    const auto aggregate =
        static_cast<size_t>(c10::CachingDeviceAllocator::StatType::AGGREGATE);
    auto& count = stats.allocation[aggregate];
    count.current = u.blocks;
    count.allocated = u.allocations;
    count.freed = u.freed;
    for (auto* bytes : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes}) {
      (*bytes)[aggregate].current = u.bytes;
      (*bytes)[aggregate].peak = u.peak_bytes;
    }
    return stats;
  }
};

void free_pinned(void* pointer) {
  auto& book = ledger();
  {
    const std::lock_guard<std::mutex> lock(book.mutex);
    book.pinned.erase(static_cast<const char*>(pointer));
  }
  std::free(pointer);
}

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    // One byte at least: an empty pinned tensor is pinned, too.
    const auto rounded = (std::max<size_t>(size, 1) + kAlignment - 1) / kAlignment * kAlignment;
    void* pointer = std::aligned_alloc(kAlignment, rounded);
    TORCH_CHECK_WITH(OutOfMemoryError, pointer, "the host has no ", size, " bytes left");
    auto& book = ledger();
    const std::lock_guard<std::mutex> lock(book.mutex);
    book.pinned[static_cast<const char*>(pointer)] = rounded;
    return {pointer, pointer, &free_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
};

// Keeps a CPU storage alive for as long as a storage of the device shows its bytes.
struct Adopted {
  c10::Storage host;
};

void free_adopted(void* context) {
  auto* adopted = static_cast<Adopted*>(context);
  ledger().remove(adopted->host.data());
  delete adopted;
}

c10::Allocator* g_allocator = nullptr;

}  // namespace

void install_memory(int64_t bytes_per_device, bool statistics) {
  ledger().total = bytes_per_device;
  g_allocator = statistics ? static_cast<c10::Allocator*>(new MemoryWithStatistics) : new Memory;
  c10::SetAllocator(kNpu, g_allocator);
}

c10::Allocator* allocator() {
  TORCH_INTERNAL_ASSERT(g_allocator);
  return g_allocator;
}

c10::Allocator* pinned_allocator() {
  static auto* it = new PinnedMemory;
  return it;
}

bool is_pinned(const void* pointer) {
  auto& book = ledger();
  const std::lock_guard<std::mutex> lock(book.mutex);
  return find_around(book.pinned, pointer, [](size_t size) { return size; }) != book.pinned.end();
}

int64_t total_bytes() { return ledger().total; }

Usage usage(c10::DeviceIndex device) {
  const std::lock_guard<std::mutex> lock(ledger().mutex);
  return ledger().usage[device];
}

void reset_peak(c10::DeviceIndex device) {
  const std::lock_guard<std::mutex> lock(ledger().mutex);
  auto& u = ledger().usage[device];
  u.peak_bytes = u.bytes;
}

c10::Device device_of(const void* pointer) {
  auto& book = ledger();
  const std::lock_guard<std::mutex> lock(book.mutex);
  const auto block = find_around(book.blocks, pointer, [](const auto& b) { return b.size; });
  TORCH_CHECK(block != book.blocks.end(), "no npu has memory at ", pointer);
  return {kNpu, block->second.device};
}

c10::Storage adopt(const c10::Storage& host, c10::Device device) {
  c10::DataPtr data(nullptr, device);
  if (void* pointer = host.mutable_data()) {
    ledger().add(pointer, host.nbytes(), device.index());
    data = {pointer, new Adopted{host}, &free_adopted, device};
  }
  return {c10::Storage::use_byte_size_t(), host.nbytes(), std::move(data), allocator(), true};
}

void resize_storage(c10::StorageImpl* storage, size_t bytes) {
  const c10::DeviceGuard guard(storage->device());
  at::native::resize_bytes_cpu(storage, bytes);
}

}  // namespace npu_device
