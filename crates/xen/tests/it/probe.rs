//! Probing, listing and lookup, with every kind of answer of a hypervisor.

use xen::{CreateDomain, CreateOptions, DomId, DomainKind, Errno, Op, ProbeError, Uuid, Xen};

use crate::scripted::{Scripted, probing, word};

const RELEASES: [((u64, u64), (u32, u32)); 6] = [
    ((4, 17), (0x15, 0x15)),
    ((4, 18), (0x16, 0x15)),
    ((4, 19), (0x17, 0x15)),
    ((4, 20), (0x17, 0x15)),
    ((4, 21), (0x17, 0x16)),
    ((4, 22), (0x18, 0x16)),
];

/// Whether this is the domctl or sysctl of that number.
fn is(op: Op, arena: &[u8], wanted: (Op, u32)) -> bool {
    (op, word(arena, 0)) == wanted
}

const GETDOMAININFO: (Op, u32) = (Op::Domctl, 5);
const GETDOMAININFOLIST: (Op, u32) = (Op::Sysctl, 6);
const CREATEDOMAIN: (Op, u32) = (Op::Domctl, 1);

#[test]
fn every_known_release_is_recognised_by_few_calls() {
    for (release, versions) in RELEASES {
        let known = probing(release, versions);
        let mut xen = Xen::probe(Scripted::new(move |op, args, arena| {
            known(op, args, arena).unwrap_or(Ok(0))
        }))
        .unwrap();
        let abi = xen.abi();
        assert_eq!((u64::from(abi.xen.0), u64::from(abi.xen.1)), release);
        assert_eq!((abi.domctl.0, abi.sysctl.0), versions, "{release:?}");
        assert!(xen.hypervisor().calls.len() <= 7, "{release:?}");
    }
}

#[test]
fn each_reason_for_a_failed_probe_has_its_error() {
    let probe = |answer: fn(Op) -> Result<u64, Errno>| {
        Xen::probe(Scripted::new(move |op, _, _| answer(op))).map(|xen| xen.abi())
    };
    let no_xen = probe(|_| Err(Errno::ENOSYS));
    assert_eq!(no_xen, Err(ProbeError::NoXen(Errno::ENOSYS)));
    // The dummy XSM denies with EPERM, FLASK with the errno of a wrong version.
    let denied = probe(|op| if op == Op::Version { Ok(4 << 16 | 17) } else { Err(Errno::EPERM) });
    assert_eq!(denied, Err(ProbeError::NotPrivileged(4, 17, Errno::EPERM)));
    let flask = probe(|op| if op == Op::Version { Ok(4 << 16 | 20) } else { Err(Errno::EACCES) });
    assert_eq!(flask, Err(ProbeError::NotPrivileged(4, 20, Errno::EACCES)));
    let newer = probe(|op| if op == Op::Version { Ok(5 << 16) } else { Err(Errno::EACCES) });
    assert_eq!(newer, Err(ProbeError::UnknownVersion(5, 0)));
}

/// A 4.17 whose other answers are `answer`'s.
fn xen_417<'a>(
    mut answer: impl FnMut(Op, &mut [u8]) -> Result<u64, Errno> + 'a,
) -> Xen<Scripted<'a>> {
    let known = probing((4, 17), (0x15, 0x15));
    Xen::probe(Scripted::new(move |op, args, arena| match known(op, args, arena) {
        Some(answer) => answer,
        None => answer(op, arena),
    }))
    .unwrap()
}

#[test]
fn an_answer_for_another_domain_is_not_found() {
    // 4.17 returns the next domain that exists.
    let mut xen = xen_417(|op, arena| {
        if is(op, arena, GETDOMAININFO) {
            arena[16..18].copy_from_slice(&3_u16.to_ne_bytes());
        }
        Ok(0)
    });
    assert_eq!(xen.domain(DomId(2)), Ok(None));
    assert_eq!(xen.domain(DomId(3)).map(|info| info.map(|info| info.domid)), Ok(Some(DomId(3))));
}

#[test]
fn esrch_is_no_error_but_another_errno_is() {
    let mut xen = xen_417(|op, arena| match op {
        _ if !is(op, arena, GETDOMAININFO) => Ok(0),
        _ if word(arena, 8) == 2 => Err(Errno::ESRCH),
        _ if word(arena, 8) == 3 => Err(Errno::EFAULT),
        _ => Ok(0),
    });
    assert_eq!(xen.domain(DomId(2)), Ok(None));
    assert_eq!(xen.domain(DomId(3)), Err(Errno::EFAULT));
}

/// A 4.17 that lists as many domains as requested, up to `domains`.
fn listing(domains: u32) -> Xen<Scripted<'static>> {
    xen_417(move |op, arena| {
        if is(op, arena, GETDOMAININFOLIST) {
            let count = word(arena, 8 + 4).min(domains);
            arena[8 + 16..8 + 20].copy_from_slice(&count.to_ne_bytes());
        }
        Ok(0)
    })
}

#[test]
fn a_list_that_fills_the_arena_is_refused_since_it_may_lack_some() {
    // The listing area of the smallest arena holds 585 entries.
    assert_eq!(listing(584).domains().map(|list| list.len()), Ok(584));
    assert_eq!(listing(585).domains(), Err(Errno::E2BIG));
    assert_eq!(listing(2000).domains(), Err(Errno::E2BIG));
}

#[test]
fn a_domain_is_created_with_the_layout_and_the_devices_of_its_release() {
    for (release, versions) in RELEASES {
        let known = probing(release, versions);
        let mut seen = None;
        let mut xen = Xen::probe(Scripted::new(|op, args, arena| {
            if is(op, arena, CREATEDOMAIN) && word(arena, 4) == versions.0 {
                let tail = if versions.0 >= 0x17 { 4 } else { 0 };
                // The identifier asked for, and the emulated devices.
                seen = Some((word(arena, 8), word(arena, 16 + 56 + tail)));
                arena[8..10].copy_from_slice(&42_u16.to_ne_bytes());
            }
            known(op, args, arena).unwrap_or(Ok(0))
        }))
        .unwrap();
        let created = xen.create_domain(&CreateDomain {
            kind: DomainKind::Hvm,
            handle: Uuid::default(),
            vcpus_max: 1,
            evtchn_port_max: 1023,
            grant_frames_max: None,
            maptrack_frames_max: None,
            options: CreateOptions::default(),
        });
        assert_eq!(created, Ok(DomId(42)));
        drop(xen);
        // 4.17 and 4.18 require PIRQs for HVM domains, later releases do not.
        let devices = if versions.0 >= 0x17 { 0x1ff } else { 0x3ff };
        assert_eq!(seen, Some((u32::from(DomId::ANY.0), devices)), "{release:?}");
    }
}

#[test]
fn a_short_allocation_returns_a_shorter_list() {
    let mut xen = xen_417(|op, _| if op == Op::Memory { Ok(2) } else { Ok(0) });
    assert_eq!(xen.populate(DomId(1), 0, &[7, 8, 9]), Ok(vec![7, 8]));
}

#[test]
fn a_result_larger_than_requested_is_rejected() {
    let mut xen = xen_417(|op, _| if op == Op::Memory { Ok(99) } else { Ok(0) });
    assert_eq!(xen.populate(DomId(1), 0, &[7, 8, 9]), Ok(vec![7, 8, 9]));
}

#[test]
fn what_does_not_fit_into_the_arena_is_refused_without_a_hypercall() {
    let mut xen = xen_417(|_, _| Ok(0));
    let most = Xen::<Scripted<'_>>::EXTENTS_MAX;
    xen.hypervisor().calls.clear();
    assert_eq!(xen.populate(DomId(1), 0, &vec![0; most + 1]), Err(Errno::E2BIG));
    assert_eq!(xen.set_hvm_context(DomId(1), &vec![0; xen::ARENA_BYTES_FULL]), Err(Errno::E2BIG));
    assert!(xen.hypervisor().calls.is_empty());
    assert_eq!(xen.populate(DomId(1), 0, &vec![0; most]), Ok(vec![]));
}
