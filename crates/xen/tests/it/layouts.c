/*
 * Says what a hypercall means, as Xen's public headers have it. The other half of layouts.rs.
 *
 * "answers" writes structures that a hypervisor fills in, each field with a value of its own.
 * "read" takes hypercalls from stdin (number, five arguments, the arena) and prints their fields.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Only the tools see domctl and sysctl. */
#define __XEN_TOOLS__ 1
#include <xen/xen.h>
#include <xen/domctl.h>
#include <xen/event_channel.h>
#include <xen/grant_table.h>
#include <xen/hvm/hvm_op.h>
#include <xen/hvm/params.h>
#include <xen/memory.h>
#include <xen/sched.h>
#include <xen/sysctl.h>
#include <xen/version.h>

#define ARENA_BYTES (128 * 1024)
#define ARENA_ADDRESS 0x700000000000ull

static unsigned char arena[ARENA_BYTES];

/* What a 64-bit pointer in a structure points to. */
static const void *at(uint64_t address)
{
    if (address < ARENA_ADDRESS || address - ARENA_ADDRESS >= ARENA_BYTES) {
        printf("POINTER OUTSIDE THE ARENA %#llx\n", (unsigned long long)address);
        exit(1);
    }
    return arena + (address - ARENA_ADDRESS);
}

/* The address in a guest handle, of either kind. */
#define HANDLE(h) ({ uint64_t a_ = 0; memcpy(&a_, &(h), sizeof(void *)); a_; })

static void hex(const char *name, const void *bytes, size_t count)
{
    const unsigned char *b = bytes;
    printf(" %s=", name);
    for (size_t i = 0; i < count; i++)
        printf("%02x", b[i]);
}

#define FIELD(s, f) printf(" %s=%#llx", #f, (unsigned long long)(s)->f)

static void read_domctl(const struct xen_domctl *op)
{
    printf("domctl domain=%u%s", op->domain,
           op->interface_version == XEN_DOMCTL_INTERFACE_VERSION ? "" : " WRONG VERSION");
    switch (op->cmd) {
    case XEN_DOMCTL_createdomain: {
        const struct xen_domctl_createdomain *c = &op->u.createdomain;
        printf(" createdomain");
        hex("handle", c->handle, sizeof(c->handle));
        FIELD(c, ssidref); FIELD(c, flags); FIELD(c, iommu_opts); FIELD(c, max_vcpus);
        FIELD(c, max_evtchn_port);
        printf(" max_grant_frames=%d max_maptrack_frames=%d", c->max_grant_frames, c->max_maptrack_frames);
        FIELD(c, grant_opts); FIELD(c, vmtrace_size); FIELD(c, cpupool_id);
        FIELD(c, arch.emulation_flags); FIELD(c, arch.misc_flags);
        break;
    }
    case XEN_DOMCTL_destroydomain: printf(" destroydomain"); break;
    case XEN_DOMCTL_pausedomain: printf(" pausedomain"); break;
    case XEN_DOMCTL_unpausedomain: printf(" unpausedomain"); break;
    case XEN_DOMCTL_resumedomain: printf(" resumedomain"); break;
    case XEN_DOMCTL_getdomaininfo: printf(" getdomaininfo"); break;
    case XEN_DOMCTL_max_mem: printf(" max_mem"); FIELD(&op->u.max_mem, max_memkb); break;
    case XEN_DOMCTL_max_vcpus: printf(" max_vcpus"); FIELD(&op->u.max_vcpus, max); break;
    case XEN_DOMCTL_setdomainhandle:
        printf(" setdomainhandle");
        hex("handle", op->u.setdomainhandle.handle, sizeof(op->u.setdomainhandle.handle));
        break;
    case XEN_DOMCTL_set_address_size:
        printf(" set_address_size"); FIELD(&op->u.address_size, size); break;
    case XEN_DOMCTL_hypercall_init:
        printf(" hypercall_init"); FIELD(&op->u.hypercall_init, gmfn); break;
    case XEN_DOMCTL_settscinfo: {
        const struct xen_domctl_tsc_info *t = &op->u.tsc_info;
        printf(" settscinfo");
        FIELD(t, tsc_mode); FIELD(t, gtsc_khz); FIELD(t, incarnation); FIELD(t, elapsed_nsec);
        break;
    }
    case XEN_DOMCTL_setvcpucontext: {
        const struct vcpu_guest_context *c = at(HANDLE(op->u.vcpucontext.ctxt));
        printf(" setvcpucontext"); FIELD(&op->u.vcpucontext, vcpu);
        printf(" bytes=%zu", sizeof(*c));
        FIELD(c, flags); FIELD(c, user_regs.rip); FIELD(c, ctrlreg[3]); FIELD(c, vm_assist);
        break;
    }
    case XEN_DOMCTL_getvcpuinfo: printf(" getvcpuinfo"); FIELD(&op->u.getvcpuinfo, vcpu); break;
    case XEN_DOMCTL_gethvmcontext:
        printf(" gethvmcontext"); FIELD(&op->u.hvmcontext, size);
        at(HANDLE(op->u.hvmcontext.buffer));
        break;
    case XEN_DOMCTL_sethvmcontext:
        printf(" sethvmcontext"); FIELD(&op->u.hvmcontext, size);
        hex("buffer", at(HANDLE(op->u.hvmcontext.buffer)), op->u.hvmcontext.size);
        break;
    case XEN_DOMCTL_get_cpu_policy: {
        const struct xen_domctl_cpu_policy *p = &op->u.cpu_policy;
        printf(" get_cpu_policy"); FIELD(p, nr_leaves); FIELD(p, nr_msrs);
        const unsigned char *leaves = at(HANDLE(p->leaves)), *msrs = at(HANDLE(p->msrs));
        printf(" apart=%d", msrs >= leaves + p->nr_leaves * sizeof(xen_cpuid_leaf_t));
        break;
    }
    case XEN_DOMCTL_set_cpu_policy: {
        const struct xen_domctl_cpu_policy *p = &op->u.cpu_policy;
        printf(" set_cpu_policy"); FIELD(p, nr_leaves); FIELD(p, nr_msrs);
        const xen_cpuid_leaf_t *leaves = at(HANDLE(p->leaves));
        for (uint32_t i = 0; i < p->nr_leaves; i++)
            printf(" (%#x %#x: %#x %#x %#x %#x)", leaves[i].leaf, leaves[i].subleaf,
                   leaves[i].a, leaves[i].b, leaves[i].c, leaves[i].d);
        break;
    }
    case XEN_DOMCTL_set_paging_mempool_size:
        printf(" set_paging_mempool_size"); FIELD(&op->u.paging_mempool, size); break;
    default: printf(" UNKNOWN %u", op->cmd);
    }
}

static void read_sysctl(const struct xen_sysctl *op)
{
    printf("sysctl%s", op->interface_version == XEN_SYSCTL_INTERFACE_VERSION ? "" : " WRONG VERSION");
    switch (op->cmd) {
    case XEN_SYSCTL_physinfo: printf(" physinfo"); break;
    case XEN_SYSCTL_sched_id: printf(" sched_id"); break;
    case XEN_SYSCTL_getdomaininfolist: {
        const struct xen_sysctl_getdomaininfolist *l = &op->u.getdomaininfolist;
        printf(" getdomaininfolist"); FIELD(l, first_domain); FIELD(l, max_domains);
        uint64_t buffer = HANDLE(l->buffer);
        at(buffer);
        uint64_t end = buffer + (uint64_t)l->max_domains * sizeof(xen_domctl_getdomaininfo_t);
        printf(" fits=%d", end <= ARENA_ADDRESS + ARENA_BYTES);
        break;
    }
    default: printf(" UNKNOWN %u", op->cmd);
    }
}

static void read_memory(uint64_t cmd, const void *arg)
{
    switch (cmd) {
    case XENMEM_populate_physmap: case XENMEM_claim_pages: {
        const struct xen_memory_reservation *r = arg;
        printf("memory %s", cmd == XENMEM_claim_pages ? "claim_pages" : "populate_physmap");
        FIELD(r, domid); FIELD(r, nr_extents); FIELD(r, extent_order); FIELD(r, mem_flags);
        if (cmd == XENMEM_populate_physmap) {
            const xen_pfn_t *extents = at(HANDLE(r->extent_start));
            for (xen_ulong_t i = 0; i < r->nr_extents; i++)
                printf(" %#lx", (unsigned long)extents[i]);
        }
        break;
    }
    case XENMEM_add_to_physmap: {
        const struct xen_add_to_physmap *a = arg;
        printf("memory add_to_physmap");
        FIELD(a, domid); FIELD(a, size); FIELD(a, idx); FIELD(a, gpfn);
        printf(" space=%s", a->space == XENMAPSPACE_shared_info ? "shared_info" : "OTHER");
        break;
    }
    case XENMEM_set_memory_map: {
        const struct xen_foreign_memory_map *m = arg;
        printf("memory set_memory_map"); FIELD(m, domid); FIELD(m, map.nr_entries);
        /* The entries are the BIOS's: no structure in the headers. */
        hex("entries", at(HANDLE(m->map.buffer)), 20 * m->map.nr_entries);
        break;
    }
    default: printf("memory UNKNOWN %llu", (unsigned long long)cmd);
    }
}

static void read_call(uint64_t op, const uint64_t *args)
{
    switch (op) {
    case __HYPERVISOR_domctl: read_domctl(at(args[0])); break;
    case __HYPERVISOR_sysctl: read_sysctl(at(args[0])); break;
    case __HYPERVISOR_memory_op: read_memory(args[0], at(args[1])); break;
    case __HYPERVISOR_xen_version:
        printf("xen_version ");
        switch (args[0]) {
        case XENVER_version: printf("version"); break;
        case XENVER_extraversion: printf("extraversion"); break;
        case XENVER_compile_info: printf("compile_info"); break;
        case XENVER_capabilities: printf("capabilities"); break;
        case XENVER_changeset: printf("changeset"); break;
        case XENVER_platform_parameters: printf("platform_parameters"); break;
        case XENVER_pagesize: printf("pagesize"); break;
        case XENVER_commandline: printf("commandline"); break;
        case XENVER_build_id:
            printf("build_id"); FIELD((const struct xen_build_id *)at(args[1]), len); break;
        default: printf("UNKNOWN %llu", (unsigned long long)args[0]);
        }
        break;
    case __HYPERVISOR_event_channel_op: {
        const struct evtchn_alloc_unbound *a = at(args[1]);
        printf("event_channel_op %s", args[0] == EVTCHNOP_alloc_unbound ? "alloc_unbound" : "OTHER");
        FIELD(a, dom); FIELD(a, remote_dom);
        break;
    }
    case __HYPERVISOR_sched_op: {
        const struct sched_remote_shutdown *s = at(args[1]);
        printf("sched_op %s", args[0] == SCHEDOP_remote_shutdown ? "remote_shutdown" : "OTHER");
        FIELD(s, domain_id);
        printf(" reason=%s", s->reason == SHUTDOWN_watchdog ? "watchdog" : "OTHER");
        break;
    }
    case __HYPERVISOR_hvm_op: {
        const struct xen_hvm_param *p = at(args[1]);
        printf("hvm_op %s", args[0] == HVMOP_set_param ? "set_param"
                          : args[0] == HVMOP_get_param ? "get_param" : "OTHER");
        FIELD(p, domid); FIELD(p, value);
        switch (p->index) {
#define PARAM(name) case HVM_PARAM_##name: printf(" index=" #name); break
        PARAM(STORE_PFN); PARAM(STORE_EVTCHN); PARAM(PAE_ENABLED); PARAM(IOREQ_PFN); PARAM(BUFIOREQ_PFN);
        PARAM(TIMER_MODE); PARAM(IDENT_PT); PARAM(CONSOLE_PFN); PARAM(CONSOLE_EVTCHN);
        PARAM(PAGING_RING_PFN); PARAM(MONITOR_RING_PFN); PARAM(SHARING_RING_PFN);
        default: printf(" index=UNKNOWN %u", p->index);
        }
        break;
    }
    case __HYPERVISOR_mmuext_op: {
        const struct mmuext_op *m = at(args[0]);
        printf("mmuext_op count=%llu domid=%llu", (unsigned long long)args[1], (unsigned long long)args[3]);
        printf(" cmd=%s", m->cmd == MMUEXT_PIN_L4_TABLE ? "PIN_L4_TABLE" : "OTHER");
        FIELD(m, arg1.mfn);
        break;
    }
    default: printf("UNKNOWN HYPERCALL %llu", (unsigned long long)op);
    }
    printf("\n");
}

static int read_calls(void)
{
    uint64_t head[6];
    while (fread(head, sizeof(head), 1, stdin) == 1) {
        if (fread(arena, ARENA_BYTES, 1, stdin) != 1)
            return 1;
        read_call(head[0], head + 1);
    }
    return 0;
}

static void answer(const void *bytes, size_t count) { fwrite(bytes, count, 1, stdout); }

static int write_answers(void)
{
    uint32_t versions[2] = { XEN_DOMCTL_INTERFACE_VERSION, XEN_SYSCTL_INTERFACE_VERSION };
    answer(versions, sizeof(versions));

    struct xen_domctl_getdomaininfo d = { 0 };
    d.domain = 11;
    d.flags = XEN_DOMINF_shutdown | XEN_DOMINF_paused | (SHUTDOWN_suspend << XEN_DOMINF_shutdownshift);
    d.tot_pages = 12; d.max_pages = 13; d.outstanding_pages = 14; d.shr_pages = 15; d.paged_pages = 16;
    d.shared_info_frame = 17; d.cpu_time = 18; d.nr_online_vcpus = 19; d.max_vcpu_id = 20; d.ssidref = 21;
    memset(d.handle, 22, sizeof(d.handle));
    d.cpupool = 23; d.gpaddr_bits = 24; d.arch_config.emulation_flags = XEN_X86_EMU_LAPIC;
    answer(&d, sizeof(d));

    struct xen_domctl_getvcpuinfo v = { .vcpu = 31, .online = 1, .blocked = 0, .running = 1,
                                        .cpu_time = 34, .cpu = 35 };
    answer(&v, sizeof(v));

    struct xen_sysctl_physinfo p = { .threads_per_core = 41, .cores_per_socket = 42, .nr_cpus = 43,
        .max_cpu_id = 44, .nr_nodes = 45, .max_node_id = 46, .cpu_khz = 47, .capabilities = 48,
        .arch_capabilities = 49, .total_pages = 50, .free_pages = 51, .scrub_pages = 52,
        .outstanding_pages = 53, .max_mfn = 54, .hw_cap = { 60, 61, 62, 63, 64, 65, 66, 67 } };
    answer(&p, sizeof(p));

    struct xen_compile_info c = { .compiler = "compiler", .compile_by = "by",
                                  .compile_domain = "domain", .compile_date = "date" };
    answer(&c, sizeof(c));

    struct evtchn_alloc_unbound e = { .dom = 71, .remote_dom = 72, .port = 73 };
    answer(&e, sizeof(e));

    struct xen_hvm_param h = { .domid = 81, .index = 82, .value = 83 };
    answer(&h, sizeof(h));

    struct grant_entry_v1 g = { .flags = GTF_permit_access, .domid = 91, .frame = 92 };
    answer(&g, sizeof(g));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "answers"))
        return write_answers();
    if (argc == 2 && !strcmp(argv[1], "read"))
        return read_calls();
    return 2;
}
