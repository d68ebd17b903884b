#include "aliases.h"

#include <c10/core/TensorImpl.h>

#include "memory.h"

namespace npu_device {
namespace {

// A tensor with the sizes, strides and flags of `like` over another storage.
at::Tensor over(const c10::Storage& storage, const at::Tensor& like, c10::DispatchKey key) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(
      like.sizes(), like.strides(), like.storage_offset());
  made._set_conj(like.is_conj());
  made._set_neg(like.is_neg());
  return made;
}

}  // namespace

c10::Storage Aliases::host_storage(const c10::Storage& ours) {
  for (const auto& shared : storages_) {
    if (shared.ours.is_alias_of(ours)) {
      return shared.host;
    }
  }
  void* data = ours.mutable_data();
  // Room that a kernel makes for a larger result comes from our allocator; see `commit`.
  c10::Storage host(c10::Storage::use_byte_size_t(), ours.nbytes(),
                    c10::DataPtr(data, c10::Device(c10::kCPU)), allocator(), true);
  storages_.push_back({ours, host, data});
  return host;
}

at::Tensor Aliases::of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != kNpu) {
    others_.push_back(tensor);
    return tensor;
  }
  for (const auto& pair : pairs_) {
    if (pair.ours.is_same(tensor)) {
      return pair.host;
    }
  }
  auto host = over(host_storage(tensor.storage()), tensor, c10::DispatchKey::CPU);
  pairs_.push_back({tensor, host});
  return host;
}

void Aliases::commit() {
  for (auto& [ours, host, data] : storages_) {
    if (host.data() != data || host.nbytes() != ours.nbytes()) {
      auto* grown = host.unsafeGetStorageImpl();
      auto* target = ours.unsafeGetStorageImpl();
      // The host alias sees the memory until the operator has returned, our storage owns it.
      auto memory = grown->set_data_ptr(c10::DataPtr(grown->mutable_data(), c10::kCPU));
      target->set_data_ptr_noswap(std::move(memory));
      target->set_nbytes(grown->nbytes());
    }
  }
  for (const auto& [ours, host] : pairs_) {
    TORCH_CHECK(host.storage().is_alias_of(host_storage(ours.storage())),
                "an operator replaced the storage of its argument");
    if (host.sizes() != ours.sizes() || host.strides() != ours.strides() ||
        host.storage_offset() != ours.storage_offset()) {
      ours.unsafeGetTensorImpl()->set_sizes_and_strides(
          host.sizes(), host.strides(), host.storage_offset());
    }
  }
}

at::Tensor Aliases::returned(const at::Tensor& result, c10::Device device) {
  if (!result.defined() || !result.is_cpu()) {
    return result;
  }
  for (const auto& pair : pairs_) {
    if (result.is_same(pair.host)) {
      return pair.ours;
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == c10::kStrided, "npu tensors are never ",
                              result.layout());
  for (const auto& other : others_) {
    if (other.defined() && other.has_storage() && result.storage().is_alias_of(other.storage())) {
      return result;
    }
  }
  for (const auto& shared : storages_) {
    if (result.storage().is_alias_of(shared.host)) {
      return over(shared.ours, result, c10::DispatchKey::PrivateUse1);
    }
  }
  // Two results may share a storage, so it is remembered.
  storages_.push_back({adopt(result.storage(), device), result.storage(), result.storage().data()});
  return over(storages_.back().ours, result, c10::DispatchKey::PrivateUse1);
}

}  // namespace npu_device
