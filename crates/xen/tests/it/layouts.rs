//! Layouts checked against Xen's public headers: a C program compiled with the headers decodes
//! every hypercall that we issue, and encodes the answers that we decode.
//!
//! Uses the headers of libxen-dev, or those below the folder named by `XEN_HEADERS` (in which
//! `xen/xen.h` lies): the interface version tested is that of those headers.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use expect_test::expect;
use xen::{
    AffinityChange, Allocation, Assignment, Batch, BitSet, ChannelStatus, Counter, CpuPolicy,
    CpuPolicyKind, CreateDomain, CreateOptions, Debugging, DirtyRead, DomId, DomainKind, E820Entry,
    E820Kind, EvtchnPeer, EvtchnPort, ExtState, ExtVcpuContext, GrantRef, GuestIrq, HvmParam,
    IommuTables, MappingChange, Mfn, MonitoringFact, Msr, Op, PciAddress, Permission, PhysmapSpace,
    PirqSource, Placement, ReservedMemory, Resource, SchedParams, SchedTuning, Scheduler,
    ShutdownReason, Trigger, TscInfo, Uuid, Vnuma, VnumaRange, Xen,
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

/// Structures as a hypervisor of the headers' release returns them.
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
        other => panic!("headers of an unknown interface version: {other:#x?}"),
    }
}

/// Lets the C program decode the hypercalls, one line each.
fn read_back(calls: &[Call]) -> String {
    let mut child = Command::new(program())
        .arg("read")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for call in calls {
        let mut bytes = (call.op as u64).to_ne_bytes().to_vec();
        bytes.extend(call.args.iter().flat_map(|arg| arg.to_ne_bytes()));
        bytes.extend_from_slice(&call.arena);
        // It exits early at a pointer out of bounds; its last line names it.
        if stdin.write_all(&bytes).is_err() {
            break;
        }
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
        options: CreateOptions::default(),
    }
}

/// Issues every hypercall that has an argument, with values that differ from field to field.
#[expect(clippy::too_many_lines, reason = "a table")]
fn issue_all(xen: &mut Xen<Scripted<'_>>) {
    // The results do not matter here.
    let _ = xen.create_domain(&wanted(DomainKind::Pv));
    let _ = xen.create_domain(&wanted(DomainKind::Pvh));
    let options = CreateOptions {
        grant_version_max: 2,
        shadow_paging: true,
        nested_virt: true,
        msr_relaxed: true,
        altp2m: (3, 10),
        pirqs: true,
        vpmu: true,
        trace_bytes: 0x4_0000,
        always_in_sync: true,
        iommu: Some(IommuTables::Own),
    };
    let _ = xen.create_domain(&CreateDomain { options, ..wanted(DomainKind::Hvm) });
    let _ = xen.create_domain(&CreateDomain { options, ..wanted(DomainKind::Pvh) });
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
    let _ = xen.cpu_policy(DOMID);
    let policy = CpuPolicy {
        leaves: vec![[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]],
        msrs: vec![Msr { index: 13, value: 14 }],
    };
    let _ = xen.set_cpu_policy(DOMID, &policy);
    let _ = xen.set_paging_pool(DOMID, 0x1_0000_3000);
    let _ = xen.alloc_unbound(EvtchnPeer { owner: DOMID, remote: DomId(8) });
    let _ = xen.domain(DOMID);
    let _ = xen.domains();
    let _ = xen.phys_info();
    let _ = xen.version_info();
    let _ = xen.populate(DOMID, 9, &[0x200, 0x1_0000_0400]);
    let _ = xen.claim_pages(DOMID, 0x1_0000_0005);
    let _ = xen.set_pod_target(DOMID, 0x1_0000_0006);
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
        HvmParam::Viridian,
        HvmParam::HpetEnabled,
        HvmParam::AcpiSState,
        HvmParam::Vm86Tss,
        HvmParam::VptAlign,
        HvmParam::BufioreqEvtchn,
        HvmParam::TripleFaultReason,
        HvmParam::IoreqServerPfn,
        HvmParam::IoreqServerPages,
        HvmParam::VmGenerationIdAddress,
        HvmParam::Altp2m,
        HvmParam::Vm86TssSized,
        HvmParam::McaCapabilities,
    ] {
        let _ = xen.set_hvm_param(DOMID, param, 0x1_0000_0008);
    }
    let _ = xen.hvm_param(DOMID, HvmParam::StorePfn);
    issue_vcpus(xen);
    issue_devices(xen);
    issue_migration(xen);
    issue_host(xen);
    issue_memory(xen);
}

fn issue_vcpus(xen: &mut Xen<Scripted<'_>>) {
    let cpus: BitSet = [0, 9, 8191].into_iter().collect();
    let nodes: BitSet = [1].into_iter().collect();
    let _ = xen.vcpu_affinity(DOMID, 2);
    let change = AffinityChange { hard: None, soft: Some(cpus.clone()), is_forced: false };
    let _ = xen.set_vcpu_affinity(DOMID, 2, &change);
    let change = AffinityChange { hard: Some(cpus), soft: Some(nodes.clone()), is_forced: true };
    let _ = xen.set_vcpu_affinity(DOMID, 2, &change);
    let _ = xen.node_affinity(DOMID);
    let _ = xen.set_node_affinity(DOMID, &nodes);
    let _ = xen.vcpu_context(DOMID, 3);
    let _ = xen.reset_vcpu(DOMID, 3);
    let _ = xen.ext_vcpu_context(DOMID, 4);
    let context = ExtVcpuContext {
        syscall32_eip: 0x1_0000_0011,
        sysenter_eip: 0x1_0000_0012,
        syscall32_cs: 0x13,
        sysenter_cs: 0x14,
        syscall32_disables_events: 1,
        sysenter_disables_events: 2,
        mcg_cap: 0x1_0000_0015,
        mci_ctl2: [0x1_0000_0016, 0x1_0000_0017],
        mcg_ext_ctl: 0x1_0000_0018,
    };
    let _ = xen.set_ext_vcpu_context(DOMID, 4, &context);
    let mut bytes = [0; 64];
    bytes[0] = 9;
    bytes[8] = 0x19;
    let _ = xen.set_ext_vcpu_bytes(DOMID, 5, &bytes);
    let _ = xen.ext_state(DOMID, 5);
    let state = ExtState { features: 0x1_0000_0007, bytes: vec![1, 2, 3, 4] };
    let _ = xen.set_ext_state(DOMID, 5, &state);
    let _ = xen.vcpu_msrs(DOMID, 6);
    let msrs = [Msr { index: 0x18, value: 0x1_0000_0019 }, Msr { index: 0x1a, value: 0x1b }];
    let _ = xen.set_vcpu_msrs(DOMID, 6, &msrs);
    for scheduler in [Scheduler::Credit, Scheduler::Credit2, Scheduler::Rtds] {
        let _ = xen.sched_params(DOMID, scheduler);
    }
    let _ = xen.set_sched_params(DOMID, SchedParams::Credit { weight: 257, cap: 51 });
    let _ = xen.set_sched_params(DOMID, SchedParams::Credit2 { weight: 258, cap: 52 });
    let budget = SchedParams::Rtds { period_us: 10_000, budget_us: 4_000, extra: 1 };
    let _ = xen.set_sched_params(DOMID, budget);
    let _ = xen.rtds_vcpus(DOMID, &[0, 2]);
    let _ = xen.set_rtds_vcpus(DOMID, &[(0, budget), (2, budget)]);
}

fn issue_devices(xen: &mut Xen<Scripted<'_>>) {
    let _ = xen.irq_permission(DOMID, 16, Permission::Allow);
    let _ = xen.gsi_permission(DOMID, 17, Permission::Allow);
    let _ = xen.iomem_permission(DOMID, 0x1_0000_0020, 0x1_0000_0021, Permission::Allow);
    let _ = xen.ioport_permission(DOMID, 0x3f8, 8, Permission::Deny);
    let _ = xen.memory_mapping(DOMID, 0x1_0000_0022, 0x1_0000_0023, 24, MappingChange::Add);
    let _ = xen.ioport_mapping(DOMID, 0x2f8, 0x3f8, 8, MappingChange::Remove);
    let device = PciAddress(0x0001_02fb);
    let assign = [ReservedMemory::Refuse, ReservedMemory::Ignore].map(Assignment::Assign);
    for assignment in assign.into_iter().chain([Assignment::Test, Assignment::Deassign]) {
        let _ = xen.assign_device(DOMID, device, assignment);
    }
    let _ = xen.device_group(DOMID, device);
    for guest in [
        GuestIrq::Pci { bus: 1, device: 2, intx: 3 },
        GuestIrq::Isa { irq: 4 },
        GuestIrq::Msi { vector: 5, flags: 6, table: 0x1_0000_0025 },
    ] {
        let _ = xen.bind_pt_irq(DOMID, 18, guest, MappingChange::Add);
    }
    let _ = xen.bind_pt_irq(DOMID, 18, GuestIrq::Isa { irq: 4 }, MappingChange::Remove);
    let _ = xen.set_target(DOMID, DomId(9));
    let _ = xen.map_pirq(DOMID, PirqSource::Gsi { gsi: 19 }, Some(20));
    let msi = PirqSource::Msi { device, entry: 2, table: 0x1_0000_0026 };
    let _ = xen.map_pirq(DOMID, msi, None);
    let _ = xen.unmap_pirq(DOMID, 21);
    let _ = xen.send_trigger(DOMID, 1, Trigger::Sleep);
    for monitored in [true, false] {
        let _ = xen.set_monitored(DOMID, monitored);
    }
    let _ = xen.rmid(DOMID);
    for what in [
        Allocation::L3Cache,
        Allocation::L3Code,
        Allocation::L3Data,
        Allocation::L2Cache,
        Allocation::Bandwidth,
    ] {
        let _ = xen.allocation(DOMID, what, 1);
        let _ = xen.set_allocation(DOMID, what, 1, 0x1_0000_0001);
    }
}

fn issue_migration(xen: &mut Xen<Scripted<'_>>) {
    let _ = xen.enable_log_dirty(DOMID);
    for look in [DirtyRead::Peek, DirtyRead::Clean, DirtyRead::Final] {
        let _ = xen.dirty(DOMID, 17, look);
    }
    let _ = xen.disable_log_dirty(DOMID);
    let _ = xen.frame_uses(DOMID, &[0x30, 0x1_0000_0031]);
    let _ = xen.hvm_record(DOMID, 2, 1);
    let _ = xen.address_size(DOMID);
    let _ = xen.tsc_info(DOMID);
    let tsc = TscInfo { mode: 1, khz: 2_400_000, incarnation: 3, elapsed_ns: 0x1_0000_0032 };
    let _ = xen.set_tsc_info(DOMID, tsc);
    let _ = xen.set_time_offset(DOMID, -3600);
    let _ = xen.subscribe_suspend(DOMID, EvtchnPort(33));
    let _ = xen.soft_reset(DOMID);
    let _ = xen.set_debugging(DOMID, Debugging::On);
    let _ = xen.set_virq_handler(DOMID, 3);
    let vnuma = Vnuma {
        distances: vec![10, 20, 20, 10],
        node_of_vcpu: vec![0, 0, 1],
        machine_node_of_node: vec![0, 1],
        ranges: vec![
            VnumaRange { start: 0, end: 0x1_0000_0000, node: 0 },
            VnumaRange { start: 0x1_0000_0000, end: 0x1_2000_0000, node: 1 },
        ],
    };
    let _ = xen.set_vnuma(DOMID, &vnuma);
}

fn issue_host(xen: &mut Xen<Scripted<'_>>) {
    let _ = xen.console(0);
    let _ = xen.console(34);
    let _ = xen.debug_keys(b"qr");
    let _ = xen.perf_counters();
    let _ = xen.cpu_idle_ns();
    let _ = xen.free_heap(32, 40, Some(1));
    let _ = xen.free_heap(0, 0, None);
    let _ = xen.idle_states(1);
    let _ = xen.cpu_places();
    let _ = xen.numa_nodes();
    let _ = xen.pci_nodes(&[PciAddress(0x0001_02fb), PciAddress(8)]);
    for fact in [
        MonitoringFact::TotalRmid,
        MonitoringFact::Factor,
        MonitoringFact::CacheKib { cpu: 3 },
        MonitoringFact::Enabled,
        MonitoringFact::Counters,
    ] {
        let _ = xen.monitoring(fact);
    }
    let _ = xen.monitoring_sample(3, 2, Counter::TotalBandwidth);
    for what in [Allocation::L3Cache, Allocation::L2Cache, Allocation::Bandwidth] {
        let _ = xen.allocation_info(what, 1);
    }
    let _ = xen.cpupool_from(1);
    let _ = xen.create_cpupool(Some(2), Scheduler::Credit);
    let _ = xen.destroy_cpupool(2);
    let _ = xen.add_cpu_to_pool(2, 3);
    let _ = xen.remove_cpu_from_pool(2, 3);
    let _ = xen.move_domain_to_pool(2, DOMID);
    let _ = xen.sched_tuning(2, Scheduler::Credit2);
    let _ = xen.set_sched_tuning(2, SchedTuning::Credit2 { ratelimit_us: 1000 });
    let tuning =
        SchedTuning::Credit { timeslice_ms: 30, ratelimit_us: 1001, migration_delay_us: 5 };
    let _ = xen.set_sched_tuning(2, tuning);
    let _ = xen.cpu_features(CpuPolicyKind::PvMax);
    let _ = xen.host_cpu_policy(CpuPolicyKind::HvmDefault);
    let _ = xen.features(1);
    let _ = xen.set_parameter("guest_loglvl", "all");
    let _ = xen.flask_enforces();
    let _ = xen.set_flask_enforces(true);
    let _ = xen.load_flask_policy(&[1, 2, 3]);
    let _ = xen.channel_status(DOMID, EvtchnPort(35));
    let _ = xen.reset_channels(DOMID);
}

fn issue_memory(xen: &mut Xen<Scripted<'_>>) {
    let _ = xen.paging_pool(DOMID);
    let _ = xen.populate_placed(DOMID, 0, &[0x40], Placement::NodeOnly(2));
    let _ = xen.populate_placed(DOMID, 0, &[0x41], Placement::OnDemand);
    let _ = xen.decrease_reservation(DOMID, 9, &[0x1_0000_0200]);
    let _ = xen.last_machine_frame();
    let _ = xen.reservations(DOMID);
    let _ = xen.last_frame(DOMID);
    let _ = xen.add_to_physmap(DOMID, PhysmapSpace::GrantTable, 3, 0x1_0000_0042);
    let places = [(1, 0x1_0000_0043), (2, 0x44)];
    let _ = xen.add_all_to_physmap(DOMID, PhysmapSpace::Gmfn, &places);
    let _ = xen.remove_from_physmap(DOMID, 0x1_0000_0045);
    let _ = xen.reserved_device_memory();
    let _ = xen.machine_memory_map();
    let _ = xen.resource_frames(DOMID, Resource::GrantTable);
    let _ = xen.resource_list(DOMID, Resource::GrantTable, 1, 2);
    let _ = xen.unpin_table(DOMID, Mfn(0x1_0000_0046));
    let _ = xen.pin_tables(DOMID, &[(1, Mfn(0x1_0000_0047)), (4, Mfn(0x48))]);
    let mut batch = Batch::default();
    batch.domain(DOMID);
    batch.alloc_unbound(EvtchnPeer { owner: DOMID, remote: DomId(8) });
    batch.set_hvm_param(DOMID, HvmParam::StorePfn, 0x1_0000_0047);
    batch.set_memory_max(DOMID, 0x1_0000_0048);
    let _ = xen.issue(&batch);
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
#[expect(clippy::too_many_lines, reason = "a table")]
fn hypercalls_decode_with_the_headers() {
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
        domctl domain=32757 createdomain handle=abababababababababababababababab ssidref=0 flags=0xe9 iommu_opts=0x1 max_vcpus=0x3 max_evtchn_port=0x3ff max_grant_frames=65 max_maptrack_frames=-1 grant_opts=0x2 vmtrace_size=0x40000 cpupool_id=0 arch.emulation_flags=0x3ff arch.misc_flags=0x1
        domctl domain=32757 createdomain handle=abababababababababababababababab ssidref=0 flags=0xe9 iommu_opts=0x1 max_vcpus=0x3 max_evtchn_port=0x3ff max_grant_frames=65 max_maptrack_frames=-1 grant_opts=0x2 vmtrace_size=0x40000 cpupool_id=0 arch.emulation_flags=0x1 arch.misc_flags=0x1
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
        domctl domain=7 set_cpu_policy nr_leaves=0x2 nr_msrs=0x1 (0x1 0x2: 0x3 0x4 0x5 0x6) (0x7 0x8: 0x9 0xa 0xb 0xc)
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
        memory set_pod_target domid=0x7 target_pages=0x100000006
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
        hvm_op set_param domid=0x7 value=0x100000008 index=VIRIDIAN
        hvm_op set_param domid=0x7 value=0x100000008 index=HPET_ENABLED
        hvm_op set_param domid=0x7 value=0x100000008 index=ACPI_S_STATE
        hvm_op set_param domid=0x7 value=0x100000008 index=VM86_TSS
        hvm_op set_param domid=0x7 value=0x100000008 index=VPT_ALIGN
        hvm_op set_param domid=0x7 value=0x100000008 index=BUFIOREQ_EVTCHN
        hvm_op set_param domid=0x7 value=0x100000008 index=TRIPLE_FAULT_REASON
        hvm_op set_param domid=0x7 value=0x100000008 index=IOREQ_SERVER_PFN
        hvm_op set_param domid=0x7 value=0x100000008 index=NR_IOREQ_SERVER_PAGES
        hvm_op set_param domid=0x7 value=0x100000008 index=VM_GENERATION_ID_ADDR
        hvm_op set_param domid=0x7 value=0x100000008 index=ALTP2M
        hvm_op set_param domid=0x7 value=0x100000008 index=VM86_TSS_SIZED
        hvm_op set_param domid=0x7 value=0x100000008 index=MCA_CAP
        hvm_op get_param domid=0x7 value=0 index=STORE_PFN
        domctl domain=7 getvcpuaffinity vcpu=0x2 flags=hardsoft hard=8192 bits: soft=8192 bits:
        domctl domain=7 setvcpuaffinity vcpu=0x2 flags=soft hard=8192 bits: soft=8192 bits: 0 9 8191
        domctl domain=7 setvcpuaffinity vcpu=0x2 flags=hardsoftforce hard=8192 bits: 0 9 8191 soft=8192 bits: 1
        domctl domain=7 getnodeaffinity nodemap=8192 bits:
        domctl domain=7 setnodeaffinity nodemap=8192 bits: 1
        domctl domain=7 getvcpucontext vcpu=0x3
        domctl domain=7 setvcpucontext vcpu=0x3 reset
        domctl domain=7 get_ext_vcpucontext vcpu=0x4
        domctl domain=7 set_ext_vcpucontext size_right=1 vcpu=0x4 syscall32_callback_eip=0x100000011 sysenter_callback_eip=0x100000012 syscall32_callback_cs=0x13 sysenter_callback_cs=0x14 syscall32_disables_events=0x1 sysenter_disables_events=0x2 vmce.caps=0x100000015 vmce.mci_ctl2_bank0=0x100000016 vmce.mci_ctl2_bank1=0x100000017 vmce.mcg_ext_ctl=0x100000018
        domctl domain=7 set_ext_vcpucontext size_right=1 vcpu=0x5 syscall32_callback_eip=0x19 sysenter_callback_eip=0 syscall32_callback_cs=0 sysenter_callback_cs=0 syscall32_disables_events=0 sysenter_disables_events=0 vmce.caps=0 vmce.mci_ctl2_bank0=0 vmce.mci_ctl2_bank1=0 vmce.mcg_ext_ctl=0
        domctl domain=7 getvcpuextstate vcpu=0x5 xfeature_mask=0 size=0
        domctl domain=7 setvcpuextstate vcpu=0x5 xfeature_mask=0x100000007 size=0x4 buffer=01020304
        domctl domain=7 get_vcpu_msrs vcpu=0x6 msr_count=0
        domctl domain=7 get_vcpu_msrs vcpu=0x6 msr_count=0
        domctl domain=7 set_vcpu_msrs vcpu=0x6 msr_count=0x2 (0x18 0x100000019) (0x1a 0x1b)
        domctl domain=7 scheduler_op getinfo credit weight=0 cap=0
        domctl domain=7 scheduler_op getinfo credit2 weight=0 cap=0
        domctl domain=7 scheduler_op getinfo rtds period=0 budget=0 flags=0
        domctl domain=7 scheduler_op putinfo credit weight=0x101 cap=0x33
        domctl domain=7 scheduler_op putinfo credit2 weight=0x102 cap=0x34
        domctl domain=7 scheduler_op putinfo rtds period=0x2710 budget=0xfa0 flags=0x1
        domctl domain=7 scheduler_op getvcpuinfo (0: 0 0 0) (2: 0 0 0)
        domctl domain=7 scheduler_op putvcpuinfo (0: 10000 4000 1) (2: 10000 4000 1)
        domctl domain=7 irq_permission pirq=0x10 allow_access=0x1
        domctl domain=7 gsi_permission gsi=0x11 grant
        domctl domain=7 iomem_permission first_mfn=0x100000020 nr_mfns=0x100000021 allow_access=0x1
        domctl domain=7 ioport_permission first_port=0x3f8 nr_ports=0x8 allow_access=0
        domctl domain=7 memory_mapping first_gfn=0x100000022 first_mfn=0x100000023 nr_mfns=0x18 add
        domctl domain=7 ioport_mapping first_gport=0x2f8 first_mport=0x3f8 nr_ports=0x8 remove
        domctl domain=7 assign_device pci flags=0 u.pci.machine_sbdf=0x102fb
        domctl domain=7 assign_device pci flags=0x1 u.pci.machine_sbdf=0x102fb
        domctl domain=7 test_assign_device pci flags=0 u.pci.machine_sbdf=0x102fb
        domctl domain=7 deassign_device pci flags=0 u.pci.machine_sbdf=0x102fb
        domctl domain=7 get_device_group machine_sbdf=0x102fb max_sdevs=0x400
        domctl domain=7 bind_pt_irq machine_irq=0x12 pci u.pci.bus=0x1 u.pci.device=0x2 u.pci.intx=0x3
        domctl domain=7 bind_pt_irq machine_irq=0x12 isa u.isa.isa_irq=0x4
        domctl domain=7 bind_pt_irq machine_irq=0x12 msi u.msi.gvec=0x5 u.msi.gflags=0x6 u.msi.gtable=0x100000025
        domctl domain=7 unbind_pt_irq machine_irq=0x12 isa u.isa.isa_irq=0x4
        domctl domain=7 set_target target=0x9
        physdev_op map_pirq gsi domid=0x7 index=19 pirq=20 bus=0 devfn=0 entry_nr=0 table_base=0
        physdev_op map_pirq msi domid=0x7 index=-1 pirq=-1 bus=0x102 devfn=0xfb entry_nr=0x2 table_base=0x100000026
        physdev_op unmap_pirq domid=0x7 pirq=0x15
        domctl domain=7 sendtrigger SLEEP vcpu=0x1
        domctl domain=7 psr_cmt_op cmd=0x1 data=0
        domctl domain=7 psr_cmt_op cmd=0 data=0
        domctl domain=7 psr_cmt_op cmd=0x2 data=0
        domctl domain=7 psr_alloc cmd=0x1 target=0x1 data=0
        domctl domain=7 psr_alloc cmd=0 target=0x1 data=0x100000001
        domctl domain=7 psr_alloc cmd=0x4 target=0x1 data=0
        domctl domain=7 psr_alloc cmd=0x2 target=0x1 data=0x100000001
        domctl domain=7 psr_alloc cmd=0x5 target=0x1 data=0
        domctl domain=7 psr_alloc cmd=0x3 target=0x1 data=0x100000001
        domctl domain=7 psr_alloc cmd=0x7 target=0x1 data=0
        domctl domain=7 psr_alloc cmd=0x6 target=0x1 data=0x100000001
        domctl domain=7 psr_alloc cmd=0x9 target=0x1 data=0
        domctl domain=7 psr_alloc cmd=0x8 target=0x1 data=0x100000001
        domctl domain=7 shadow_op ENABLE_LOGDIRTY pages=0
        domctl domain=7 shadow_op PEEK pages=0x11 bitmap=000000
        domctl domain=7 shadow_op CLEAN pages=0x11 bitmap=000000
        domctl domain=7 shadow_op CLEAN FINAL pages=0x11 bitmap=000000
        domctl domain=7 shadow_op OFF pages=0
        domctl domain=7 getpageframeinfo3 0x30 0x100000031
        domctl domain=7 gethvmcontext_partial type=0x2 instance=0x1 bufsz=0xf000
        domctl domain=7 get_address_size
        domctl domain=7 gettscinfo
        domctl domain=7 settscinfo tsc_mode=0x1 gtsc_khz=0x249f00 incarnation=0x3 elapsed_nsec=0x100000032
        domctl domain=7 settimeoffset -3600
        domctl domain=7 subscribe port=0x21
        domctl domain=7 soft_reset
        domctl domain=7 setdebugging enable=0x1
        domctl domain=7 set_virq_handler virq=0x3
        domctl domain=7 setvnumainfo nr_vnodes=0x2 nr_vmemranges=0x2 nr_vcpus=0x3 distances=(0xa 0x14 0x14 0xa) vcpus=(0 0 0x1) nodes=(0 0x1) (0-0x100000000 flags=0 nid=0) (0x100000000-0x120000000 flags=0 nid=1)
        sysctl readconsole clear=0 incremental=0 index=0 fits=1
        sysctl readconsole clear=0 incremental=0x1 index=0x22 fits=1
        sysctl debug_keys keys=7172
        sysctl perfc_op query desc_bytes=0
        sysctl perfc_op query desc_bytes=0
        sysctl getcpuinfo max_cpus=0x1000
        sysctl availheap min_bitwidth=0x20 max_bitwidth=0x28 node=1
        sysctl availheap min_bitwidth=0 max_bitwidth=0 node=-1
        sysctl get_pmstat max_cx cpuid=0x1 u.getcx.nr=0 u.getcx.nr_pc=0 u.getcx.nr_cc=0 apart=0
        sysctl get_pmstat cxstat cpuid=0x1 u.getcx.nr=0 u.getcx.nr_pc=0 u.getcx.nr_cc=0 apart=0
        sysctl cputopoinfo num_cpus=0 null=1
        sysctl cputopoinfo num_cpus=0 null=0
        sysctl numainfo num_nodes=0 apart=0
        sysctl numainfo num_nodes=0 apart=0
        sysctl pcitopoinfo (0x1 0x2 0xfb) (0 0 0x8) apart=8
        sysctl psr_cmt_op cmd=0 flags=0 u.l3_cache.cpu=0
        sysctl psr_cmt_op cmd=0x1 flags=0 u.l3_cache.cpu=0
        sysctl psr_cmt_op cmd=0x2 flags=0 u.l3_cache.cpu=0x3
        sysctl psr_cmt_op cmd=0x3 flags=0 u.l3_cache.cpu=0
        sysctl psr_cmt_op cmd=0x4 flags=0 u.l3_cache.cpu=0
        platform_op version=1 resource_op cpu=0x3 (cmd=1 rsvd=0 idx=0xc8d val=0x200000002) (cmd=0 rsvd=0 idx=0xc8e val=0) (cmd=0 rsvd=0 idx=0x10 val=0)
        sysctl psr_alloc cmd=0 target=0x1
        sysctl psr_alloc cmd=0x1 target=0x1
        sysctl psr_alloc cmd=0x2 target=0x1
        sysctl cpupool_op INFO cpupool_id=0x1 sched_id=0 domid=0 cpu=0 cpumap=8192 bits:
        sysctl cpupool_op CREATE cpupool_id=0x2 sched_id=0x5 domid=0 cpu=0 cpumap=8192 bits:
        sysctl cpupool_op DESTROY cpupool_id=0x2 sched_id=0 domid=0 cpu=0 cpumap=8192 bits:
        sysctl cpupool_op ADDCPU cpupool_id=0x2 sched_id=0 domid=0 cpu=0x3 cpumap=8192 bits:
        sysctl cpupool_op RMCPU cpupool_id=0x2 sched_id=0 domid=0 cpu=0x3 cpumap=8192 bits:
        sysctl cpupool_op MOVEDOMAIN cpupool_id=0x2 sched_id=0 domid=0x7 cpu=0 cpumap=8192 bits:
        sysctl scheduler_op getinfo cpupool_id=0x2 credit2 u.sched_credit2.ratelimit_us=0
        sysctl scheduler_op putinfo cpupool_id=0x2 credit2 u.sched_credit2.ratelimit_us=0x3e8
        sysctl scheduler_op putinfo cpupool_id=0x2 credit u.sched_credit.tslice_ms=0x1e u.sched_credit.ratelimit_us=0x3e9 u.sched_credit.vcpu_migr_delay_us=0x5
        sysctl get_cpu_featureset index=0x2 nr_features=0 null=1
        sysctl get_cpu_featureset index=0x2 nr_features=0 null=0
        sysctl get_cpu_policy index=0x5 nr_leaves=0 nr_msrs=0 apart=0
        sysctl get_cpu_policy index=0x5 nr_leaves=0 nr_msrs=0 apart=0
        xen_version get_features submap_idx=0x1
        hypfs_op read path=/params/guest_loglvl path_bytes=21 entry=1
        xsm_op version=1 getenforce
        xsm_op version=1 setenforce u.enforce.enforcing=0x1
        xsm_op version=1 load u.load.size=0x3 buffer=010203
        event_channel_op status dom=0x7 port=0x23
        event_channel_op reset dom=0x7
        domctl domain=7 get_paging_mempool_size
        memory populate_physmap domid=0x7 nr_extents=0x1 extent_order=0 mem_flags=0x20300 0x40
        memory populate_physmap domid=0x7 nr_extents=0x1 extent_order=0 mem_flags=0x10000 0x41
        memory decrease_reservation domid=0x7 nr_extents=0x1 extent_order=0x9 mem_flags=0 0x100000200
        memory maximum_ram_page
        memory current_reservation domid=7
        memory maximum_reservation domid=7
        memory maximum_gpfn domid=7
        memory add_to_physmap domid=0x7 size=0 idx=0x3 gpfn=0x100000042 space=grant_table
        memory add_to_physmap_batch domid=0x7 size=0x2 space=gmfn (0x1 0x100000043) (0x2 0x44) errs=(0 0)
        memory remove_from_physmap domid=0x7 gpfn=0x100000045
        memory reserved_device_memory_map ALL nr_entries=0x400
        memory machine_memory_map nr_entries=0x400
        memory acquire_resource grant_table domid=0x7 id=0 nr_frames=0 pad=0 frame=0
        memory acquire_resource grant_table domid=0x7 id=0 nr_frames=0x2 pad=0 frame=0x1 list=(0 0 0 0)
        mmuext_op count=1 domid=7 cmd=UNPIN_TABLE arg1.mfn=0x100000046
        mmuext_op count=2 domid=7 cmd=PIN_L1_TABLE arg1.mfn=0x100000047 cmd=PIN_L4_TABLE arg1.mfn=0x48
        multicall
          domctl domain=7 getdomaininfo
          event_channel_op alloc_unbound dom=0x7 remote_dom=0x8
          hvm_op set_param domid=0x7 value=0x100000047 index=STORE_PFN
          domctl domain=7 max_mem max_memkb=0x100000048
    "#]].assert_eq(&read_back(&calls));
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn structures_of_the_headers_decode() {
    let mut answers = Answers::laid_out();
    let domaininfo = answers.next(112);
    let vcpuinfo = answers.next(24);
    let physinfo = answers.next(112);
    let compile_info = answers.next(144);
    let alloc_unbound = answers.next(8);
    let hvm_param = answers.next(16);
    let grant_entry = answers.next(8);
    let channel_status = answers.next(24);
    let ext_vcpu_context = answers.next(64);
    let tsc_info = answers.next(24);
    let shadow_op = answers.next(40);
    let scheduler_op = answers.next(24);
    let cpupool_op = answers.next(40);
    let tuning = answers.next(32);
    let heap = answers.next(24);
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
            (Op::Domctl, 43) => put(16, &ext_vcpu_context),
            (Op::Domctl, 59) => put(16, &tsc_info),
            (Op::Domctl, 10) => put(16, &shadow_op),
            (Op::Domctl, 16) => put(16, &scheduler_op),
            (Op::Sysctl, 18) => put(8, &cpupool_op),
            (Op::Sysctl, 19) => put(8, &tuning),
            (Op::Sysctl, 9) => put(8, &heap),
            (Op::EventChannel, _) if args[0] == 5 => put(0, &channel_status),
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
            pages_shared: 15,
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

    let interdomain = ChannelStatus::Interdomain { remote: DomId(101), port: EvtchnPort(102) };
    assert_eq!(xen.channel_status(DOMID, EvtchnPort(1)), Ok(interdomain));
    let context = xen.ext_vcpu_context(DOMID, 0).unwrap();
    assert_eq!((context.syscall32_eip, context.sysenter_eip), (111, 112));
    assert_eq!((context.syscall32_cs, context.sysenter_cs), (113, 114));
    assert_eq!((context.syscall32_disables_events, context.sysenter_disables_events), (115, 116));
    assert_eq!((context.mcg_cap, context.mci_ctl2, context.mcg_ext_ctl), (117, [118, 119], 120));
    let tsc = TscInfo { mode: 121, khz: 122, incarnation: 123, elapsed_ns: 124 };
    assert_eq!(xen.tsc_info(DOMID), Ok(tsc));
    let dirty = xen.dirty(DOMID, 64, DirtyRead::Peek).unwrap();
    assert_eq!((dirty.pages, dirty.bitmap.len(), dirty.faults, dirty.dirtied), (9, 2, 131, 132));
    let budget = SchedParams::Rtds { period_us: 141, budget_us: 142, extra: 1 };
    assert_eq!(xen.sched_params(DOMID, Scheduler::Rtds), Ok(budget));
    let pool = xen.cpupool_from(0).unwrap().unwrap();
    assert_eq!((pool.id, pool.scheduler_id, pool.domains), (151, 152, 153));
    let tuning =
        SchedTuning::Credit { timeslice_ms: 161, ratelimit_us: 162, migration_delay_us: 163 };
    assert_eq!(xen.sched_tuning(0, Scheduler::Credit), Ok(tuning));
    assert_eq!(xen.free_heap(0, 0, None), Ok(171));

    xen.seed_grant(DOMID, GrantRef(3), DomId(91), 92).unwrap();
    assert_eq!(xen.hypervisor().resource_writes, [(3 * 8, grant_entry)]);
}
