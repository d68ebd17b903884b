// The operators of the device. Those that make, view, copy and resize tensors are here; all others
// run their CPU kernel on aliases of the arguments.

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <set>
#include <string>

#include "aliases.h"
#include "memory.h"
#include "runtime.h"

namespace npu_device {
namespace {

using at::IntArrayRef;
using at::SymIntArrayRef;
using at::Tensor;
using std::optional;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

void check_unpinned(optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

c10::OptionalDeviceGuard guard_of(optional<c10::Device> device) {
  return c10::OptionalDeviceGuard(device);
}

Tensor empty(IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout>,
             optional<c10::Device> device, optional<bool> pin_memory,
             optional<at::MemoryFormat> format) {
  check_unpinned(pin_memory);
  const auto guard = guard_of(device);
  return at::detail::empty_generic(size, allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<at::ScalarType> dtype,
                     optional<at::Layout>, optional<c10::Device> device,
                     optional<bool> pin_memory) {
  check_unpinned(pin_memory);
  const auto guard = guard_of(device);
  return at::detail::empty_strided_generic(
      size, stride, allocator(), kKeys, c10::dtype_or_default(dtype));
}

const Tensor& resize_(const Tensor& self, SymIntArrayRef size, optional<at::MemoryFormat> format) {
  const auto guard = guard_of(self.device());
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

Tensor& set_empty(Tensor& self) {
  const auto guard = guard_of(self.device());
  const c10::Storage storage(c10::Storage::use_byte_size_t(), 0, allocator(), true);
  return at::native::set_storage_cpu_(self, storage, 0, {0}, {1});
}

Tensor& set_storage(Tensor& self, at::Storage storage, c10::SymInt offset, SymIntArrayRef size,
                    SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(storage), offset.expect_int(),
                                      C10_AS_INTARRAYREF_SLOW(size),
                                      C10_AS_INTARRAYREF_SLOW(stride));
}

Tensor copy_from(const Tensor& self, const Tensor& target, bool) {
  Aliases aliases;
  aliases.of(target).copy_(aliases.of(self));
  return target;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& target) {
  target.resize_(self.sizes());
  return copy_from(self, target, false);
}

// torch does not take convolutions of an out-of-tree device for its own, so they never fall back.
Tensor convolution(const Tensor& input, const Tensor& weight, const optional<Tensor>& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  Aliases aliases;
  const auto result = at::convolution(
      aliases.of(input), aliases.of(weight), bias ? optional<Tensor>(aliases.of(*bias)) : bias,
      stride, padding, dilation, transposed, output_padding, groups);
  return aliases.returned(result, input.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, IntArrayRef stride,
    IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
    int64_t groups, std::array<bool, 3> mask) {
  Aliases aliases;
  const auto channels = transposed ? weight.size(1) * groups : weight.size(0);
  const auto [to_input, to_weight, to_bias] = at::convolution_backward(
      aliases.of(gradient), aliases.of(input), aliases.of(weight), IntArrayRef{channels}, stride,
      padding, dilation, transposed, output_padding, groups, mask);
  return {aliases.returned(to_input, input.device()), aliases.returned(to_weight, input.device()),
          aliases.returned(to_bias, input.device())};
}

void record_stream(Tensor&, at::Stream) {}

Tensor pin_memory(const Tensor&, optional<c10::Device>) {
  TORCH_CHECK(false, "an npu tensor cannot be pinned; only dense CPU tensors can be pinned");
}

// Operators that take a CPU tensor beside tensors of the device, as on any accelerator.
bool takes_cpu_tensors(const std::string& name) {
  static const std::set<std::string> names{
      "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_",
      "aten::_unsafe_index", "aten::_unsafe_index_put", "aten::_pack_padded_sequence"};
  return names.count(name) != 0;
}

// Makes one call of an operator on the CPU out of a call on the device.
class Fallback {
 public:
  explicit Fallback(const c10::OperatorHandle& op)
      : schema_(op.schema()),
        strict_(schema_.name().rfind("aten::", 0) == 0 && !takes_cpu_tensors(schema_.name())) {}

  // Replaces the arguments on the stack by what the CPU kernel is to get.
  void convert_arguments(torch::jit::Stack* stack) {
    const auto count = schema_.arguments().size();
    const auto first = stack->size() - count;
    for (size_t i = 0; i < count; i++) {
      find_device((*stack)[first + i]);
    }
    TORCH_INTERNAL_ASSERT(device_, schema_.name(), " was called without anything on npu");
    for (size_t i = 0; i < count; i++) {
      auto& value = (*stack)[first + i];
      value = converted(value, schema_.arguments()[i]);
    }
  }

  // Replaces the results on the stack by those on the device.
  void convert_results(torch::jit::Stack* stack) {
    aliases_.commit();
    for (auto i = stack->size() - schema_.returns().size(); i < stack->size(); i++) {
      auto& value = (*stack)[i];
      if (value.isTensor()) {
        value = aliases_.returned(value.toTensor(), *device_);
      } else if (value.isTensorList()) {
        auto tensors = value.toTensorVector();
        for (auto& tensor : tensors) {
          tensor = aliases_.returned(tensor, *device_);
        }
        value = tensors;
      }
    }
  }

  // Where results go: the device of the arguments, else the one that is asked for.
  c10::Device device() const { return *device_; }

 private:
  void find_device(const c10::IValue& value) {
    if (value.isTensor()) {
      meet(value.toTensor());
    } else if (value.isTensorList()) {
      for (const Tensor& tensor : value.toTensorVector()) {
        meet(tensor);
      }
    } else if (value.isOptionalTensorList()) {
      for (const auto& tensor : value.toOptionalTensorVector()) {
        if (tensor) {
          meet(*tensor);
        }
      }
    } else if (value.isDevice() && value.toDevice().type() == kNpu && !device_) {
      device_ = c10::Device(kNpu, checked_index(value.toDevice().index()));
    }
  }

  void meet(const Tensor& tensor) {
    if (!tensor.defined()) {
      return;
    }
    if (tensor.device().type() == kNpu) {
      TORCH_CHECK(!met_ || *met_ == tensor.device(), message(), *met_, " and ", tensor.device(),
                  "! (when checking arguments of ", schema_.name(), ")");
      met_ = device_ = tensor.device();
    } else if (tensor.is_cpu() && tensor.dim() > 0) {
      stray_ = true;
    }
    TORCH_CHECK(!strict_ || !stray_ || !met_, message(), *met_, " and cpu!",
                " (when checking arguments of ", schema_.name(), ")");
  }

  static const char* message() {
    return "Expected all tensors to be on the same device, but found at least two devices, ";
  }

  c10::IValue converted(const c10::IValue& value, const c10::Argument& argument) {
    if (value.isTensor()) {
      return aliases_.of(value.toTensor());
    }
    if (value.isTensorList()) {
      auto tensors = value.toTensorVector();
      for (auto& tensor : tensors) {
        tensor = aliases_.of(tensor);
      }
      return tensors;
    }
    if (value.isOptionalTensorList()) {
      c10::List<optional<Tensor>> tensors;
      for (const auto& tensor : value.toOptionalTensorVector()) {
        tensors.push_back(tensor ? optional<Tensor>(aliases_.of(*tensor)) : tensor);
      }
      return tensors;
    }
    if (value.isDevice() && value.toDevice().type() == kNpu) {
      return c10::Device(c10::kCPU);
    }
    if (value.isGenerator()) {
      return host_generator(value.toGenerator());
    }
    if (value.isNone() && is_generator(argument)) {
      return host_generator(default_generator(device_->index()));
    }
    return value;
  }

  static bool is_generator(const c10::Argument& argument) {
    const auto optional_type = argument.type()->cast<c10::OptionalType>();
    return optional_type && optional_type->getElementType()->kind() == c10::TypeKind::GeneratorType;
  }

  const c10::FunctionSchema& schema_;
  const bool strict_;
  bool stray_ = false;
  optional<c10::Device> met_;
  optional<c10::Device> device_;
  Aliases aliases_;
};

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU),
                              "Could not run '", op.operator_name(),
                              "' on npu: it has a kernel neither for npu nor for the CPU");
  Fallback call(op);
  call.convert_arguments(stack);
  const c10::DeviceGuard guard(call.device());
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  call.convert_results(stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("view_as_real", at::native::view_as_real);
  library.impl("view_as_complex", at::native::view_as_complex);
  library.impl("resize_", resize_);
  library.impl("set_", set_empty);
  library.impl("set_.source_Tensor", at::native::set_tensor_);
  library.impl("set_.source_Storage", at::native::set_);
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("convolution_overrideable", convolution);
  library.impl("convolution_backward_overrideable", convolution_backward);
  library.impl("record_stream", record_stream);
  library.impl("_pin_memory", pin_memory);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

}  // namespace npu_device
