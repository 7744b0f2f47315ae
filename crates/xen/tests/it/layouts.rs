//! Our bytes against Xen's public headers: a C program compiled with the headers reads every
//! hypercall that we issue, and lays out the answers that we decode.
//!
//! Uses the headers of libxen-dev, or those below the folder named by `XEN_HEADERS` (in which
//! `xen/xen.h` lies): the interface of those headers is the one that is tested.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use expect_test::expect;
use xen::{
    CreateDomain, DomId, DomainKind, E820Entry, E820Kind, EvtchnPeer, EvtchnPort, GrantRef,
    HvmParam, Mfn, Op, ShutdownReason, Uuid, Xen,
};

use crate::scripted::{Call, Scripted, probing};

/// The C program, compiled once.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(compile)
}

fn compile() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/layouts.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("layouts");
    let mut cc = Command::new("cc");
    if let Some(headers) = std::env::var_os("XEN_HEADERS") {
        cc.arg("-isystem").arg(headers);
    }
    let output =
        cc.arg("-o").arg(&program).arg(&source).output().expect(
            "no C compiler: this test reads Xen's public headers; install gcc and libxen-dev",
        );
    assert!(
        output.status.success(),
        "the C half does not compile; is libxen-dev installed?\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    program
}

/// Structures as a hypervisor of the headers' release fills them in.
struct Answers {
    bytes: Vec<u8>,
    position: usize,
    versions: (u32, u32),
}

impl Answers {
    fn laid_out() -> Self {
        let output = Command::new(program()).arg("answers").output().unwrap();
        assert!(output.status.success());
        let bytes = output.stdout;
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let versions = (word(0), word(4));
        Self { bytes, position: 8, versions }
    }

    fn next(&mut self, count: usize) -> Vec<u8> {
        let answer = self.bytes[self.position..self.position + count].to_vec();
        self.position += count;
        answer
    }
}

fn release(versions: (u32, u32)) -> (u64, u64) {
    match versions {
        (0x15, 0x15) => (4, 17),
        (0x16, 0x15) => (4, 18),
        (0x17, 0x15) => (4, 19),
        (0x17, 0x16) => (4, 21),
        (0x18, 0x16) => (4, 22),
        other => panic!("headers of an interface that this crate does not know: {other:#x?}"),
    }
}

/// Has the C program read the hypercalls, one line each.
fn read_back(calls: &[Call]) -> String {
    let mut child = Command::new(program())
        .arg("read")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for call in calls {
        stdin.write_all(&(call.op as u64).to_ne_bytes()).unwrap();
        for arg in call.args {
            stdin.write_all(&arg.to_ne_bytes()).unwrap();
        }
        stdin.write_all(&call.arena).unwrap();
    }
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    text
}

const DOMID: DomId = DomId(7);
const HANDLE: Uuid = Uuid([0xab; 16]);

fn wanted(kind: DomainKind) -> CreateDomain {
    CreateDomain {
        kind,
        handle: HANDLE,
        vcpus_max: 3,
        evtchn_port_max: 1023,
        grant_frames_max: Some(65),
        maptrack_frames_max: None,
    }
}

/// Issues every hypercall that has an argument, with values that differ from field to field.
fn issue_all(xen: &mut Xen<Scripted<'_>>) {
    // What they answer does not matter here.
    let _ = xen.create_domain(&wanted(DomainKind::Pv));
    let _ = xen.create_domain(&wanted(DomainKind::Pvh));
    let _ = xen.destroy_domain(DOMID);
    let _ = xen.pause_domain(DOMID);
    let _ = xen.unpause_domain(DOMID);
    let _ = xen.resume_domain(DOMID);
    let _ = xen.remote_shutdown(DOMID, ShutdownReason::Watchdog);
    let _ = xen.set_handle(DOMID, HANDLE);
    let _ = xen.set_vcpus_max(DOMID, 3);
    let _ = xen.set_memory_max(DOMID, 0x1_0000_0001);
    let _ = xen.set_address_size_64(DOMID);
    let _ = xen.init_hypercall_page(DOMID, 0x1_0000_0002);
    let _ = xen.set_tsc_mode(DOMID, 2);
    let _ = xen.set_vcpu_context(DOMID, 1, &vcpu_context());
    let _ = xen.vcpu_info(DOMID, 31);
    let _ = xen.hvm_context(DOMID);
    let _ = xen.set_hvm_context(DOMID, &[1, 2, 3]);
    let _ = xen.cpuid_policy(DOMID);
    let _ = xen.set_cpuid_policy(DOMID, &[[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]]);
    let _ = xen.set_paging_pool(DOMID, 0x1_0000_3000);
    let _ = xen.alloc_unbound(EvtchnPeer { owner: DOMID, remote: DomId(8) });
    let _ = xen.domain(DOMID);
    let _ = xen.domains();
    let _ = xen.phys_info();
    let _ = xen.version_info();
    let _ = xen.populate(DOMID, 9, &[0x200, 0x1_0000_0400]);
    let _ = xen.claim_pages(DOMID, 0x1_0000_0005);
    let _ = xen.map_shared_info(DOMID, 0x1_0000_0006);
    let ram = E820Entry { address: 0x10, bytes: 0x20, kind: E820Kind::Ram };
    let _ = xen.set_memory_map(DOMID, &[ram, E820Entry { kind: E820Kind::AcpiNvs, ..ram }]);
    let _ = xen.pin_l4(DOMID, Mfn(0x1_0000_0007));
    for param in [
        HvmParam::StorePfn,
        HvmParam::StoreEvtchn,
        HvmParam::PaeEnabled,
        HvmParam::IoreqPfn,
        HvmParam::BufioreqPfn,
        HvmParam::TimerMode,
        HvmParam::IdentPt,
        HvmParam::ConsolePfn,
        HvmParam::ConsoleEvtchn,
        HvmParam::PagingRingPfn,
        HvmParam::MonitorRingPfn,
        HvmParam::SharingRingPfn,
    ] {
        let _ = xen.set_hvm_param(DOMID, param, 0x1_0000_0008);
    }
    let _ = xen.hvm_param(DOMID, HvmParam::StorePfn);
}

/// A `struct vcpu_guest_context` with a few fields set, at the offsets that builders use.
fn vcpu_context() -> Vec<u8> {
    let mut context = vec![0; 5168];
    let mut put = |offset: usize, value: u64| {
        context[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
    };
    put(512, 5); // flags, behind the FPU state
    put(520 + 16 * 8, 0x1_0000_0009); // user_regs.rip
    put(5008, 0x1_0000_000a); // ctrlreg[3]
    put(5136, 0x1_0000_000b); // vm_assist
    context
}

#[test]
fn what_we_issue_is_what_the_headers_read() {
    let versions = Answers::laid_out().versions;
    let known = probing(release(versions), versions);
    let mut xen =
        Xen::probe(Scripted::new(move |op, args, arena| known(op, args, arena).unwrap_or(Ok(0))))
            .unwrap();
    xen.hypervisor().calls.clear();
    issue_all(&mut xen);
    let calls = std::mem::take(&mut xen.hypervisor().calls);
    expect![[r#"
        domctl domain=32757 createdomain handle=abababababababababababababababab ssidref=0 flags=0 iommu_opts=0 max_vcpus=0x3 max_evtchn_port=0x3ff max_grant_frames=65 max_maptrack_frames=-1 grant_opts=0x1 vmtrace_size=0 cpupool_id=0 arch.emulation_flags=0 arch.misc_flags=0
        domctl domain=32757 createdomain handle=abababababababababababababababab ssidref=0 flags=0x3 iommu_opts=0 max_vcpus=0x3 max_evtchn_port=0x3ff max_grant_frames=65 max_maptrack_frames=-1 grant_opts=0x1 vmtrace_size=0 cpupool_id=0 arch.emulation_flags=0x1 arch.misc_flags=0
        domctl domain=7 destroydomain
        domctl domain=7 pausedomain
        domctl domain=7 unpausedomain
        domctl domain=7 resumedomain
        sched_op remote_shutdown domain_id=0x7 reason=watchdog
        domctl domain=7 setdomainhandle handle=abababababababababababababababab
        domctl domain=7 max_vcpus max=0x3
        domctl domain=7 max_mem max_memkb=0x100000001
        domctl domain=7 set_address_size size=0x40
        domctl domain=7 hypercall_init gmfn=0x100000002
        domctl domain=7 settscinfo tsc_mode=0x2 gtsc_khz=0 incarnation=0 elapsed_nsec=0
        domctl domain=7 setvcpucontext vcpu=0x1 bytes=5168 flags=0x5 user_regs.rip=0x100000009 ctrlreg[3]=0x10000000a vm_assist=0x10000000b
        domctl domain=7 getvcpuinfo vcpu=0x1f
        domctl domain=7 gethvmcontext size=0x1f000
        domctl domain=7 sethvmcontext size=0x3 buffer=010203
        domctl domain=7 get_cpu_policy nr_leaves=0x9f5 nr_msrs=0x10 apart=1
        domctl domain=7 set_cpu_policy nr_leaves=0x2 nr_msrs=0 (0x1 0x2: 0x3 0x4 0x5 0x6) (0x7 0x8: 0x9 0xa 0xb 0xc)
        domctl domain=7 set_paging_mempool_size size=0x100003000
        event_channel_op alloc_unbound dom=0x7 remote_dom=0x8
        domctl domain=7 getdomaininfo
        sysctl getdomaininfolist first_domain=0 max_domains=0x249 fits=1
        sysctl physinfo
        xen_version extraversion
        xen_version capabilities
        xen_version changeset
        xen_version commandline
        xen_version version
        xen_version compile_info
        xen_version platform_parameters
        xen_version pagesize
        xen_version build_id len=0x40
        sysctl sched_id
        memory populate_physmap domid=0x7 nr_extents=0x2 extent_order=0x9 mem_flags=0 0x200 0x100000400
        memory claim_pages domid=0x7 nr_extents=0x100000005 extent_order=0 mem_flags=0
        memory add_to_physmap domid=0x7 size=0 idx=0 gpfn=0x100000006 space=shared_info
        memory set_memory_map domid=0x7 map.nr_entries=0x2 entries=10000000000000002000000000000000010000001000000000000000200000000000000004000000
        mmuext_op count=1 domid=7 cmd=PIN_L4_TABLE arg1.mfn=0x100000007
        hvm_op set_param domid=0x7 value=0x100000008 index=STORE_PFN
        hvm_op set_param domid=0x7 value=0x100000008 index=STORE_EVTCHN
        hvm_op set_param domid=0x7 value=0x100000008 index=PAE_ENABLED
        hvm_op set_param domid=0x7 value=0x100000008 index=IOREQ_PFN
        hvm_op set_param domid=0x7 value=0x100000008 index=BUFIOREQ_PFN
        hvm_op set_param domid=0x7 value=0x100000008 index=TIMER_MODE
        hvm_op set_param domid=0x7 value=0x100000008 index=IDENT_PT
        hvm_op set_param domid=0x7 value=0x100000008 index=CONSOLE_PFN
        hvm_op set_param domid=0x7 value=0x100000008 index=CONSOLE_EVTCHN
        hvm_op set_param domid=0x7 value=0x100000008 index=PAGING_RING_PFN
        hvm_op set_param domid=0x7 value=0x100000008 index=MONITOR_RING_PFN
        hvm_op set_param domid=0x7 value=0x100000008 index=SHARING_RING_PFN
        hvm_op get_param domid=0x7 value=0 index=STORE_PFN
    "#]].assert_eq(&read_back(&calls));
}

#[test]
fn what_the_headers_lay_out_is_what_we_decode() {
    let mut answers = Answers::laid_out();
    let domaininfo = answers.next(112);
    let vcpuinfo = answers.next(24);
    let physinfo = answers.next(112);
    let compile_info = answers.next(144);
    let alloc_unbound = answers.next(8);
    let hvm_param = answers.next(16);
    let grant_entry = answers.next(8);
    assert_eq!(answers.position, answers.bytes.len(), "a structure has another size");

    let versions = answers.versions;
    let known = probing(release(versions), versions);
    let mut xen = Xen::probe(Scripted::new(move |op, args, arena| {
        if let Some(answer) = known(op, args, arena) {
            return answer;
        }
        let command = arena[0];
        let mut put = |offset: usize, bytes: &[u8]| {
            arena[offset..offset + bytes.len()].copy_from_slice(bytes);
        };
        match (op, command) {
            (Op::Domctl, 5) => put(16, &domaininfo),
            (Op::Domctl, 14) => put(16, &vcpuinfo),
            (Op::Sysctl, 3) => put(8, &physinfo),
            (Op::Version, _) if args[0] == 2 => put(0, &compile_info),
            (Op::EventChannel, _) => put(0, &alloc_unbound),
            (Op::Hvm, _) => put(0, &hvm_param),
            _ => {}
        }
        Ok(0)
    }))
    .unwrap();
    expect![[r#"
        DomainInfo {
            domid: DomId(
                11,
            ),
            flags: DomainFlags(
                131084,
            ),
            pages: 12,
            pages_max: 13,
            pages_outstanding: 14,
            shared_info_frame: 17,
            cpu_time_ns: 18,
            vcpus_online: 19,
            vcpu_id_max: Some(
                20,
            ),
            handle: 16161616-1616-1616-1616-161616161616,
            cpupool: 23,
            emulation: EmulationFlags(
                1,
            ),
        }
    "#]]
    .assert_debug_eq(&xen.domain(DomId(11)).unwrap().unwrap());
    expect![[r#"
        VcpuInfo {
            online: true,
            blocked: false,
            running: true,
            cpu_time_ns: 34,
            cpu: 35,
        }
    "#]]
    .assert_debug_eq(&xen.vcpu_info(DOMID, 31).unwrap());
    expect![[r#"
        PhysInfo {
            threads_per_core: 41,
            cores_per_socket: 42,
            cpus: 43,
            cpu_id_max: 44,
            nodes: 45,
            cpu_khz: 47,
            capabilities: 48,
            pages: 50,
            pages_free: 51,
            pages_scrub: 52,
            pages_outstanding: 53,
            hw_caps: [
                60,
                61,
                62,
                63,
                64,
                65,
                66,
                67,
            ],
        }
    "#]]
    .assert_debug_eq(&xen.phys_info().unwrap());
    let version = xen.version_info().unwrap();
    expect![[r#"
        (
            "compiler",
            "by",
            "domain",
            "date",
        )
    "#]]
    .assert_debug_eq(&(
        version.compiler,
        version.compile_by,
        version.compile_domain,
        version.compile_date,
    ));
    let peer = EvtchnPeer { owner: DOMID, remote: DomId::DOM0 };
    assert_eq!(xen.alloc_unbound(peer), Ok(EvtchnPort(73)));
    assert_eq!(xen.hvm_param(DOMID, HvmParam::StorePfn), Ok(83));

    xen.seed_grant(DOMID, GrantRef(3), DomId(91), 92).unwrap();
    assert_eq!(xen.hypervisor().resource_writes, [(3 * 8, grant_entry)]);
}
