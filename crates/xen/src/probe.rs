//! Probes the interface versions of the running Xen.
//!
//! Xen compares the version before anything else and answers EACCES to a wrong one; FLASK also
//! answers EACCES to a denied call, hence the cross-check with `XENVER_version`.

use crate::abi::{domctl, sysctl};
use crate::xen::{Counters, domctl_raw, sysctl_raw};
use crate::{Abi, DomId, DomctlVersion, Errno, Hypervisor, Op, SysctlVersion};

/// The hypervisor cannot be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ProbeError {
    #[error(
        "the hypervisor does not answer XENVER_version: {0}; is this a Xen host, and are we its control domain?"
    )]
    NoXen(Errno),
    #[error("this domain may not control Xen {0}.{1}: {2}; run in dom0 as root")]
    NotPrivileged(u16, u16, Errno),
    #[error(
        "Xen {0}.{1} speaks an interface version that this build does not know (domctl 0x15 to 0x18, sysctl 0x15 to 0x16); a newer Xylem is needed"
    )]
    UnknownVersion(u16, u16),
    #[error("cannot probe the interface version of Xen {0}.{1}: {2}; try again")]
    NotTold(u16, u16, Errno),
}

pub(crate) fn probe<H: Hypervisor>(
    hypervisor: &mut H,
    counters: &mut Counters,
) -> Result<Abi, ProbeError> {
    counters.count("xen_version");
    let version = hypervisor.hypercall(Op::Version, [0, 0, 0, 0, 0]).map_err(ProbeError::NoXen)?;
    let [minor_low, minor_high, major_low, major_high, ..] = version.to_le_bytes();
    let (major, minor) =
        (u16::from_le_bytes([major_low, major_high]), u16::from_le_bytes([minor_low, minor_high]));
    let denied = |errno| ProbeError::NotPrivileged(major, minor, errno);

    let mut found_domctl = None;
    for known in Abi::DOMCTL_KNOWN {
        counters.count("getdomaininfo");
        match domctl_raw(hypervisor, known, domctl::GETDOMAININFO, DomId::DOM0, &[]) {
            Err(Errno::EACCES) => {}
            Err(errno @ Errno::EPERM) => return Err(denied(errno)),
            // Any other error may have occurred before the version was compared.
            Err(errno) => return Err(ProbeError::NotTold(major, minor, errno)),
            Ok(_) => {
                found_domctl = Some(DomctlVersion(known));
                break;
            }
        }
    }
    let mut found_sysctl = None;
    for known in Abi::SYSCTL_KNOWN {
        counters.count("sched_id");
        match sysctl_raw(hypervisor, known, sysctl::SCHED_ID, &[]) {
            Err(Errno::EACCES) => {}
            Err(errno @ Errno::EPERM) => return Err(denied(errno)),
            // Any other error may have occurred before the version was compared.
            Err(errno) => return Err(ProbeError::NotTold(major, minor, errno)),
            Ok(_) => {
                found_sysctl = Some(SysctlVersion(known));
                break;
            }
        }
    }
    match (found_domctl, found_sysctl) {
        (Some(domctl), Some(sysctl)) => Ok(Abi { domctl, sysctl, xen: (major, minor) }),
        // A known release that refuses every one of its versions denies the call itself.
        _ if major == 4 && (17..=22).contains(&minor) => Err(denied(Errno::EACCES)),
        _ => Err(ProbeError::UnknownVersion(major, minor)),
    }
}
