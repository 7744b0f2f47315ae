//! The parameters of a translated domain that are part of its state.

use xen::HvmParam;

/// In the order in which Xen's toolstack saves them. Others are the toolstack's settings, or set by the
/// guest again.
pub(crate) const SAVED: [HvmParam; 16] = [
    HvmParam::StorePfn,
    HvmParam::IoreqPfn,
    HvmParam::BufioreqPfn,
    HvmParam::PagingRingPfn,
    HvmParam::MonitorRingPfn,
    HvmParam::SharingRingPfn,
    HvmParam::Vm86TssSized,
    HvmParam::ConsolePfn,
    HvmParam::AcpiIoportsLocation,
    HvmParam::Viridian,
    HvmParam::IdentPt,
    HvmParam::VmGenerationIdAddress,
    HvmParam::IoreqServerPfn,
    HvmParam::IoreqServerPages,
    HvmParam::X87FipWidth,
    HvmParam::McaCapabilities,
];
