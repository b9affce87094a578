// A device for tests where there is none: its memory is the host's, but torch takes it for another one.
//
// Whatever a tensor of it and one of the host do together is refused, as with an accelerator, and what is allocated on
// it is counted. Every operation is the host's own, through torch's fallback.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <vector>

namespace {

constexpr auto KIND = c10::DeviceType::PrivateUse1;
constexpr size_t HEADER = 64;  // bytes before a block, where its size is
std::atomic<int64_t> allocated{0};

void release(void* block) {
  allocated -= *static_cast<int64_t*>(block);
  std::free(block);
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* block = std::aligned_alloc(HEADER, HEADER + (size + HEADER - 1) / HEADER * HEADER);
    TORCH_CHECK(block != nullptr, "the second device is out of memory");
    *static_cast<int64_t*>(block) = static_cast<int64_t>(size);
    allocated += static_cast<int64_t>(size);
    return {static_cast<char*>(block) + HEADER, block, &release, c10::Device(KIND, 0)};
  }
  void copy_data(void* to, const void* from, std::size_t size) const override { default_copy_data(to, from, size); }
};

Memory memory;
REGISTER_ALLOCATOR(KIND, &memory);

at::Tensor empty(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
    std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(
      size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
    std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

at::Tensor on_host(const at::Tensor& tensor) {
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), at::TensorOptions().dtype(tensor.dtype()));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_host(to).copy_(on_host(from));
  return to;
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat>) {
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  const size_t needed = (self.storage_offset() + self.numel()) * self.element_size();
  if (const auto& storage = self.storage(); storage.nbytes() < needed) {
    auto larger = memory.allocate(needed);
    std::memcpy(larger.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(larger));
    storage.set_nbytes(needed);
  }
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

void check(const c10::IValue& value, const char* name) {
  // A number may be on the host.
  const auto refuse = [name](const at::Tensor& tensor) {
    TORCH_CHECK(
        !tensor.defined() || tensor.dim() == 0 || !tensor.is_cpu(), name,
        ": expected all tensors to be on the same device, but found the host and the second device");
  };
  if (value.isTensor()) {
    refuse(value.toTensor());
  } else if (value.isTensorList()) {
    for (const auto& each : value.toTensorVector()) refuse(each);
  }
}

void on_the_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  for (const auto& value : torch::jit::last(*stack, schema.arguments().size())) check(value, schema.name().c_str());
  at::native::cpu_fallback(op, stack);
}

// Convolutions have no fallback.
at::Tensor there(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(c10::Device(KIND, 0)) : tensor;
}

at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding,
    int64_t groups) {
  for (const auto& each : {input, weight, bias.value_or(at::Tensor())}) check(each, "convolution");
  const auto shift = bias && bias->defined() ? std::optional<at::Tensor>(on_host(*bias)) : std::nullopt;
  return there(at::convolution(
      on_host(input), on_host(weight), shift, stride, padding, dilation, transposed, output_padding, groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding,
    int64_t groups, std::array<bool, 3> wanted) {
  for (const auto& each : {gradient, input, weight}) check(each, "convolution_backward");
  const std::vector<int64_t> bias_size{transposed ? weight.size(1) * groups : weight.size(0)};
  auto [of_input, of_weight, of_bias] = at::convolution_backward(
      on_host(gradient), on_host(input), on_host(weight), c10::IntArrayRef(bias_size), stride, padding, dilation,
      transposed, output_padding, groups, wanted);
  return {there(of_input), there(of_weight), there(of_bias)};
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};

Hooks hooks;
const bool registered = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

// Attention as products and a softmax: torch's faster ones know which devices they are for.
int64_t plain_attention(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double, bool,
    std::optional<double>, bool) {
  return 0;
}

}  // namespace

namespace c10::impl {

// There is one of it, and whatever it is asked is done at once.
struct SecondDeviceGuard final : NoOpDeviceGuardImpl<DeviceType::PrivateUse1> {
  Device exchangeDevice(Device) const override { return getDevice(); }
  Device getDevice() const override { return Device(KIND, 0); }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, Device(KIND, 0)); }
  Stream exchangeStream(Stream) const noexcept override { return Stream(Stream::DEFAULT, Device(KIND, 0)); }
  void record(void**, const Stream&, const DeviceIndex, const EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, SecondDeviceGuard);

}  // namespace c10::impl

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &plain_attention);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", [](const at::Tensor& self, c10::SymIntArrayRef size) {
    return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
  });
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_host>());
}

TORCH_LIBRARY(second_device, m) {
  m.def("allocated", []() { return allocated.load(); });
}
