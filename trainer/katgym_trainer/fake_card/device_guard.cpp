// What autograd asks of CUDA, answered for one card that is not there: a device guard and hooks that do nothing.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace at {

const Device kCard(DeviceType::CUDA, 0);
const c10::Stream kStream(c10::Stream::DEFAULT, kCard);

struct CardGuard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device device) const override { return device; }
  Device getDevice() const override { return kCard; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  c10::Stream getStream(Device) const override { return kStream; }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  DeviceIndex deviceCount() const noexcept override { return 1; }
};

struct CardHooks final : CUDAHooksInterface {
  CardHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
  const Generator& getDefaultGenerator(DeviceIndex) const override { return detail::getDefaultCPUGenerator(); }
  Generator getNewGenerator(DeviceIndex) const override { return detail::createCPUGenerator(); }
};

// Before those of a torch with CUDA, which has no driver here.
C10_REGISTER_TYPED_CLASS_WITH_PRIORITY(CUDAHooksRegistry, "CUDAHooks", c10::REGISTRY_PREFERRED, CardHooks)

CardGuard guard;

} // namespace at

extern "C" void set_guard() {
  c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].store(&at::guard);
}
