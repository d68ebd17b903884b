#include "runtime.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <chrono>
#include <vector>

#include "memory.h"

namespace npu_device {
namespace {

using Clock = std::chrono::steady_clock;

c10::DeviceIndex g_count = 0;
thread_local c10::DeviceIndex g_device = 0;
// Each thread has a current stream for each device; 0 is the default stream.
thread_local std::array<c10::StreamId, kMaxDevices> g_streams{};
std::atomic<c10::StreamId> g_last_stream{0};

c10::Stream stream_of(c10::Device device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kNpu, checked_index(device.index())), id);
}

// All work is done when it is called for, so that every stream is idle and every event has passed.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kNpu; }
  c10::DeviceIndex deviceCount() const noexcept override { return g_count; }
  c10::Device getDevice() const override { return {kNpu, g_device}; }
  void setDevice(c10::Device device) const override { set_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    g_device = device.index() < 0 ? g_device : device.index();
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }

  c10::Stream getStream(c10::Device device) const override {
    return stream_of(device, g_streams[checked_index(device.index())]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream_of(device, ++g_last_stream);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return stream_of(device, ++g_last_stream);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(stream.device());
    g_streams[checked_index(stream.device_index())] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "an event of npu:", int(device),
                " cannot be recorded on a stream of npu:", int(stream.device_index()));
    if (*event == nullptr) {
      *event = new Clock::time_point;
    }
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    TORCH_CHECK(from && to, "both events must be recorded before the time between them is asked");
    const auto passed =
        *static_cast<Clock::time_point*>(to) - *static_cast<Clock::time_point*>(from);
    return std::chrono::duration<double, std::milli>(passed).count();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// A generator of the device: a CPU generator does the work, so that seeds give the CPU's numbers.
struct NpuGenerator final : c10::GeneratorImpl {
  explicit NpuGenerator(c10::DeviceIndex device,
                        at::Generator host = at::detail::createCPUGenerator())
      : GeneratorImpl({kNpu, device}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host(std::move(host)) {}

  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "npu generators have no offset"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "npu generators have no offset"); }
  void set_state(const c10::TensorImpl& state) override {
    host.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host.unsafeGetGeneratorImpl()->get_state();
  }
  NpuGenerator* clone_impl() const override {
    return new NpuGenerator(device_.index(), host.clone());
  }

  at::Generator host;
};

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return g_count > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return g_count; }
  c10::DeviceIndex getCurrentDevice() const override { return g_device; }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto before = g_device;
    set_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  c10::Device getDeviceFromPtr(void* pointer) const override { return device_of(pointer); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<NpuGenerator>(checked_index(device));
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), bytes);
  }
};

}  // namespace

void install_runtime(c10::DeviceIndex count) {
  TORCH_CHECK(0 < count && count <= kMaxDevices, "1 to ", int(kMaxDevices), " devices, not ",
              int(count));
  g_count = count;
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}

c10::DeviceIndex device_count() { return g_count; }

c10::DeviceIndex current_device() { return g_device; }

c10::DeviceIndex checked_index(c10::DeviceIndex device) {
  if (device == -1) {
    return g_device;
  }
  TORCH_CHECK(0 <= device && device < g_count, "there is no npu:", int(device), "; there are ",
              int(g_count));
  return device;
}

void set_device(c10::DeviceIndex device) { g_device = checked_index(device); }

const at::Generator& default_generator(c10::DeviceIndex device) {
  static auto* generators = [] {
    auto* made = new std::vector<at::Generator>;
    for (c10::DeviceIndex i = 0; i < g_count; i++) {
      made->push_back(at::make_generator<NpuGenerator>(i));
    }
    return made;
  }();
  return (*generators)[checked_index(device)];
}

at::Generator host_generator(const at::Generator& generator) {
  auto* ours = dynamic_cast<NpuGenerator*>(generator.unsafeGetGeneratorImpl());
  TORCH_CHECK(ours, "Expected a 'npu' device type for generator but found '",
              generator.device().type(), "'");
  return ours->host;
}

}  // namespace npu_device
