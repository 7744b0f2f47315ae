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
#include <xen/hypfs.h>
#include <xen/hvm/params.h>
#include <xen/memory.h>
#include <xen/physdev.h>
#include <xen/sched.h>
#include <xen/sysctl.h>
#include <xen/version.h>
#include <xen/xsm/flask_op.h>
#include <xen/platform.h>

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

static void bitmap(const char *name, const struct xenctl_bitmap *map)
{
    const unsigned char *b = at(HANDLE(map->bitmap));
    printf(" %s=%u bits:", name, map->nr_bits);
    for (uint32_t i = 0; i < map->nr_bits; i++)
        if (b[i / 8] & 1 << i % 8)
            printf(" %u", i);
}

static void words(const char *name, const void *handle, size_t count)
{
    const uint32_t *w = handle;
    printf(" %s=(", name);
    for (size_t i = 0; i < count; i++)
        printf("%s%#x", i ? " " : "", w[i]);
    printf(")");
}

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
        printf(" setvcpucontext"); FIELD(&op->u.vcpucontext, vcpu);
        if (!HANDLE(op->u.vcpucontext.ctxt)) {
            printf(" reset");
            break;
        }
        const struct vcpu_guest_context *c = at(HANDLE(op->u.vcpucontext.ctxt));
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
    case XEN_DOMCTL_get_paging_mempool_size: printf(" get_paging_mempool_size"); break;
    case XEN_DOMCTL_setvcpuaffinity: case XEN_DOMCTL_getvcpuaffinity: {
        const struct xen_domctl_vcpuaffinity *a = &op->u.vcpuaffinity;
        printf(op->cmd == XEN_DOMCTL_setvcpuaffinity ? " setvcpuaffinity" : " getvcpuaffinity");
        FIELD(a, vcpu);
        printf(" flags=%s%s%s", a->flags & XEN_VCPUAFFINITY_HARD ? "hard" : "",
               a->flags & XEN_VCPUAFFINITY_SOFT ? "soft" : "",
               a->flags & XEN_VCPUAFFINITY_FORCE ? "force" : "");
        bitmap("hard", &a->cpumap_hard); bitmap("soft", &a->cpumap_soft);
        break;
    }
    case XEN_DOMCTL_setnodeaffinity: case XEN_DOMCTL_getnodeaffinity:
        printf(op->cmd == XEN_DOMCTL_setnodeaffinity ? " setnodeaffinity" : " getnodeaffinity");
        bitmap("nodemap", &op->u.nodeaffinity.nodemap);
        break;
    case XEN_DOMCTL_getvcpucontext:
        printf(" getvcpucontext"); FIELD(&op->u.vcpucontext, vcpu);
        at(HANDLE(op->u.vcpucontext.ctxt));
        break;
    case XEN_DOMCTL_get_ext_vcpucontext: printf(" get_ext_vcpucontext"); FIELD(&op->u.ext_vcpucontext, vcpu); break;
    case XEN_DOMCTL_set_ext_vcpucontext: {
        const struct xen_domctl_ext_vcpucontext *e = &op->u.ext_vcpucontext;
        printf(" set_ext_vcpucontext size_right=%d", e->size == sizeof(*e));
        FIELD(e, vcpu); FIELD(e, syscall32_callback_eip); FIELD(e, sysenter_callback_eip);
        FIELD(e, syscall32_callback_cs); FIELD(e, sysenter_callback_cs);
        FIELD(e, syscall32_disables_events); FIELD(e, sysenter_disables_events);
        FIELD(e, vmce.caps); FIELD(e, vmce.mci_ctl2_bank0); FIELD(e, vmce.mci_ctl2_bank1);
        FIELD(e, vmce.mcg_ext_ctl);
        break;
    }
    case XEN_DOMCTL_getvcpuextstate: case XEN_DOMCTL_setvcpuextstate: {
        const struct xen_domctl_vcpuextstate *e = &op->u.vcpuextstate;
        printf(op->cmd == XEN_DOMCTL_getvcpuextstate ? " getvcpuextstate" : " setvcpuextstate");
        FIELD(e, vcpu); FIELD(e, xfeature_mask); FIELD(e, size);
        if (HANDLE(e->buffer)) hex("buffer", at(HANDLE(e->buffer)), e->size);
        break;
    }
    case XEN_DOMCTL_get_vcpu_msrs: case XEN_DOMCTL_set_vcpu_msrs: {
        const struct xen_domctl_vcpu_msrs *m = &op->u.vcpu_msrs;
        printf(op->cmd == XEN_DOMCTL_get_vcpu_msrs ? " get_vcpu_msrs" : " set_vcpu_msrs");
        FIELD(m, vcpu); FIELD(m, msr_count);
        if (HANDLE(m->msrs))
            for (uint32_t i = 0; i < m->msr_count; i++) {
                const xen_domctl_vcpu_msr_t *msr = (const xen_domctl_vcpu_msr_t *)at(HANDLE(m->msrs)) + i;
                printf(" (%#x %#llx)", msr->index, (unsigned long long)msr->value);
            }
        break;
    }
    case XEN_DOMCTL_scheduler_op: {
        const struct xen_domctl_scheduler_op *s = &op->u.scheduler_op;
        static const char *const cmds[] = { "putinfo", "getinfo", "putvcpuinfo", "getvcpuinfo" };
        printf(" scheduler_op %s", cmds[s->cmd & 3]);
        if (s->cmd >= XEN_DOMCTL_SCHEDOP_putvcpuinfo) {
            const xen_domctl_schedparam_vcpu_t *v = at(HANDLE(s->u.v.vcpus));
            for (uint32_t i = 0; i < s->u.v.nr_vcpus; i++)
                printf(" (%u: %u %u %u)", v[i].vcpuid, v[i].u.rtds.period, v[i].u.rtds.budget, v[i].u.rtds.flags);
        } else switch (s->sched_id) {
        case XEN_SCHEDULER_CREDIT: printf(" credit"); FIELD(&s->u.credit, weight); FIELD(&s->u.credit, cap); break;
        case XEN_SCHEDULER_CREDIT2: printf(" credit2"); FIELD(&s->u.credit2, weight); FIELD(&s->u.credit2, cap); break;
        case XEN_SCHEDULER_RTDS:
            printf(" rtds"); FIELD(&s->u.rtds, period); FIELD(&s->u.rtds, budget); FIELD(&s->u.rtds, flags); break;
        default: printf(" OTHER");
        }
        break;
    }
    case XEN_DOMCTL_irq_permission:
        printf(" irq_permission"); FIELD(&op->u.irq_permission, pirq); FIELD(&op->u.irq_permission, allow_access); break;
#ifdef XEN_DOMCTL_gsi_permission
    case XEN_DOMCTL_gsi_permission:
        printf(" gsi_permission"); FIELD(&op->u.gsi_permission, gsi);
        printf(" %s", op->u.gsi_permission.flags == XEN_DOMCTL_GSI_GRANT ? "grant" : "revoke");
        break;
#else
    /* New in Xen 4.20: these headers do not know it. */
    case 88: {
        const uint32_t *words = (const uint32_t *)&op->u;
        printf(" gsi_permission gsi=%#x %s", words[0], words[1] == 1 ? "grant" : "revoke");
        break;
    }
#endif
    case XEN_DOMCTL_iomem_permission: {
        const struct xen_domctl_iomem_permission *p = &op->u.iomem_permission;
        printf(" iomem_permission"); FIELD(p, first_mfn); FIELD(p, nr_mfns); FIELD(p, allow_access);
        break;
    }
    case XEN_DOMCTL_ioport_permission: {
        const struct xen_domctl_ioport_permission *p = &op->u.ioport_permission;
        printf(" ioport_permission"); FIELD(p, first_port); FIELD(p, nr_ports); FIELD(p, allow_access);
        break;
    }
    case XEN_DOMCTL_memory_mapping: {
        const struct xen_domctl_memory_mapping *m = &op->u.memory_mapping;
        printf(" memory_mapping"); FIELD(m, first_gfn); FIELD(m, first_mfn); FIELD(m, nr_mfns);
        printf(" %s", m->add_mapping == DPCI_ADD_MAPPING ? "add" : "remove");
        break;
    }
    case XEN_DOMCTL_ioport_mapping: {
        const struct xen_domctl_ioport_mapping *m = &op->u.ioport_mapping;
        printf(" ioport_mapping"); FIELD(m, first_gport); FIELD(m, first_mport); FIELD(m, nr_ports);
        printf(" %s", m->add_mapping == DPCI_ADD_MAPPING ? "add" : "remove");
        break;
    }
    case XEN_DOMCTL_assign_device: case XEN_DOMCTL_test_assign_device: case XEN_DOMCTL_deassign_device: {
        const struct xen_domctl_assign_device *a = &op->u.assign_device;
        printf(op->cmd == XEN_DOMCTL_assign_device ? " assign_device"
               : op->cmd == XEN_DOMCTL_test_assign_device ? " test_assign_device" : " deassign_device");
        printf(" %s", a->dev == XEN_DOMCTL_DEV_PCI ? "pci" : "OTHER");
        FIELD(a, flags); FIELD(a, u.pci.machine_sbdf);
        break;
    }
    case XEN_DOMCTL_get_device_group: {
        const struct xen_domctl_get_device_group *g = &op->u.get_device_group;
        printf(" get_device_group"); FIELD(g, machine_sbdf); FIELD(g, max_sdevs);
        at(HANDLE(g->sdev_array));
        break;
    }
    case XEN_DOMCTL_bind_pt_irq: case XEN_DOMCTL_unbind_pt_irq: {
        const struct xen_domctl_bind_pt_irq *b = &op->u.bind_pt_irq;
        printf(op->cmd == XEN_DOMCTL_bind_pt_irq ? " bind_pt_irq" : " unbind_pt_irq");
        FIELD(b, machine_irq);
        switch (b->irq_type) {
        case PT_IRQ_TYPE_PCI: printf(" pci"); FIELD(b, u.pci.bus); FIELD(b, u.pci.device); FIELD(b, u.pci.intx); break;
        case PT_IRQ_TYPE_ISA: printf(" isa"); FIELD(b, u.isa.isa_irq); break;
        case PT_IRQ_TYPE_MSI: printf(" msi"); FIELD(b, u.msi.gvec); FIELD(b, u.msi.gflags); FIELD(b, u.msi.gtable); break;
        default: printf(" OTHER");
        }
        break;
    }
    case XEN_DOMCTL_set_target: printf(" set_target"); FIELD(&op->u.set_target, target); break;
    case XEN_DOMCTL_psr_cmt_op: {
        const struct xen_domctl_psr_cmt_op *p = &op->u.psr_cmt_op;
        printf(" psr_cmt_op"); FIELD(p, cmd); FIELD(p, data);
        break;
    }
    case XEN_DOMCTL_psr_alloc: {
        const struct xen_domctl_psr_alloc *p = &op->u.psr_alloc;
        printf(" psr_alloc"); FIELD(p, cmd); FIELD(p, target); FIELD(p, data);
        break;
    }
    case XEN_DOMCTL_sendtrigger: {
        static const char *const names[] = { "NMI", "RESET", "INIT", "POWER", "SLEEP" };
        printf(" sendtrigger %s", names[op->u.sendtrigger.trigger % 5]); FIELD(&op->u.sendtrigger, vcpu);
        break;
    }
    case XEN_DOMCTL_shadow_op: {
        const struct xen_domctl_shadow_op *s = &op->u.shadow_op;
        printf(" shadow_op %s", s->op == XEN_DOMCTL_SHADOW_OP_OFF ? "OFF"
               : s->op == XEN_DOMCTL_SHADOW_OP_ENABLE_LOGDIRTY ? "ENABLE_LOGDIRTY"
               : s->op == XEN_DOMCTL_SHADOW_OP_CLEAN ? "CLEAN" : s->op == XEN_DOMCTL_SHADOW_OP_PEEK ? "PEEK" : "OTHER");
        printf("%s", s->mode == XEN_DOMCTL_SHADOW_LOGDIRTY_FINAL ? " FINAL" : s->mode ? " OTHER" : "");
        FIELD(s, pages);
        if (s->pages) hex("bitmap", at(HANDLE(s->dirty_bitmap)), (s->pages + 7) / 8);
        break;
    }
    case XEN_DOMCTL_getpageframeinfo3: {
        const struct xen_domctl_getpageframeinfo3 *g = &op->u.getpageframeinfo3;
        const xen_pfn_t *frames = at(HANDLE(g->array));
        printf(" getpageframeinfo3");
        for (uint64_t i = 0; i < g->num; i++)
            printf(" %#lx", (unsigned long)frames[i]);
        break;
    }
    case XEN_DOMCTL_gethvmcontext_partial: {
        const struct xen_domctl_hvmcontext_partial *h = &op->u.hvmcontext_partial;
        printf(" gethvmcontext_partial"); FIELD(h, type); FIELD(h, instance); FIELD(h, bufsz);
        at(HANDLE(h->buffer) + h->bufsz - 1);
        break;
    }
    case XEN_DOMCTL_get_address_size: printf(" get_address_size"); break;
    case XEN_DOMCTL_gettscinfo: printf(" gettscinfo"); break;
    case XEN_DOMCTL_settimeoffset:
        printf(" settimeoffset %lld", (long long)op->u.settimeoffset.time_offset_seconds); break;
    case XEN_DOMCTL_subscribe: printf(" subscribe"); FIELD(&op->u.subscribe, port); break;
    case XEN_DOMCTL_soft_reset: printf(" soft_reset"); break;
    case XEN_DOMCTL_setdebugging: printf(" setdebugging"); FIELD(&op->u.setdebugging, enable); break;
    case XEN_DOMCTL_set_virq_handler: printf(" set_virq_handler"); FIELD(&op->u.set_virq_handler, virq); break;
    case XEN_DOMCTL_setvnumainfo: {
        const struct xen_domctl_vnuma *v = &op->u.vnuma;
        printf(" setvnumainfo"); FIELD(v, nr_vnodes); FIELD(v, nr_vmemranges); FIELD(v, nr_vcpus);
        words("distances", at(HANDLE(v->vdistance)), v->nr_vnodes * v->nr_vnodes);
        words("vcpus", at(HANDLE(v->vcpu_to_vnode)), v->nr_vcpus);
        words("nodes", at(HANDLE(v->vnode_to_pnode)), v->nr_vnodes);
        const struct xen_vmemrange *r = at(HANDLE(v->vmemrange));
        for (uint32_t i = 0; i < v->nr_vmemranges; i++)
            printf(" (%#llx-%#llx flags=%u nid=%u)", (unsigned long long)r[i].start,
                   (unsigned long long)r[i].end, r[i].flags, r[i].nid);
        break;
    }
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
    case XEN_SYSCTL_readconsole: {
        const struct xen_sysctl_readconsole *r = &op->u.readconsole;
        printf(" readconsole"); FIELD(r, clear); FIELD(r, incremental); FIELD(r, index);
        printf(" fits=%d", HANDLE(r->buffer) + r->count <= ARENA_ADDRESS + ARENA_BYTES);
        break;
    }
    case XEN_SYSCTL_debug_keys:
        printf(" debug_keys");
        hex("keys", at(HANDLE(op->u.debug_keys.keys)), op->u.debug_keys.nr_keys);
        break;
    case XEN_SYSCTL_perfc_op: {
        const struct xen_sysctl_perfc_op *p = &op->u.perfc_op;
        printf(" perfc_op %s", p->cmd == XEN_SYSCTL_PERFCOP_query ? "query" : "OTHER");
        printf(" desc_bytes=%llu", HANDLE(p->desc) ? (unsigned long long)(HANDLE(p->val) - HANDLE(p->desc)) : 0);
        break;
    }
    case XEN_SYSCTL_getcpuinfo:
        printf(" getcpuinfo"); FIELD(&op->u.getcpuinfo, max_cpus); at(HANDLE(op->u.getcpuinfo.info)); break;
    case XEN_SYSCTL_availheap: {
        const struct xen_sysctl_availheap *a = &op->u.availheap;
        printf(" availheap"); FIELD(a, min_bitwidth); FIELD(a, max_bitwidth); printf(" node=%d", a->node);
        break;
    }
    case XEN_SYSCTL_get_pmstat: {
        const struct xen_sysctl_get_pmstat *p = &op->u.get_pmstat;
        printf(" get_pmstat %s", p->type == PMSTAT_get_max_cx ? "max_cx" : p->type == PMSTAT_get_cxstat ? "cxstat" : "OTHER");
        FIELD(p, cpuid); FIELD(p, u.getcx.nr); FIELD(p, u.getcx.nr_pc); FIELD(p, u.getcx.nr_cc);
        printf(" apart=%lld", (long long)(HANDLE(p->u.getcx.residencies) - HANDLE(p->u.getcx.triggers)));
        break;
    }
    case XEN_SYSCTL_cputopoinfo:
        printf(" cputopoinfo"); FIELD(&op->u.cputopoinfo, num_cpus);
        printf(" null=%d", !HANDLE(op->u.cputopoinfo.cputopo));
        break;
    case XEN_SYSCTL_numainfo: {
        const struct xen_sysctl_numainfo *n = &op->u.numainfo;
        printf(" numainfo"); FIELD(n, num_nodes);
        printf(" apart=%lld", (long long)(HANDLE(n->distance) - HANDLE(n->meminfo)));
        break;
    }
    case XEN_SYSCTL_pcitopoinfo: {
        const struct xen_sysctl_pcitopoinfo *p = &op->u.pcitopoinfo;
        const physdev_pci_device_t *d = at(HANDLE(p->devs));
        printf(" pcitopoinfo");
        for (uint32_t i = 0; i < p->num_devs; i++)
            printf(" (%#x %#x %#x)", d[i].seg, d[i].bus, d[i].devfn);
        printf(" apart=%lld", (long long)(HANDLE(p->nodes) - HANDLE(p->devs)));
        break;
    }
    case XEN_SYSCTL_psr_cmt_op: {
        const struct xen_sysctl_psr_cmt_op *p = &op->u.psr_cmt_op;
        printf(" psr_cmt_op"); FIELD(p, cmd); FIELD(p, flags); FIELD(p, u.l3_cache.cpu);
        break;
    }
    case XEN_SYSCTL_psr_alloc: {
        const struct xen_sysctl_psr_alloc *p = &op->u.psr_alloc;
        printf(" psr_alloc"); FIELD(p, cmd); FIELD(p, target);
        break;
    }
    case XEN_SYSCTL_cpupool_op: {
        const struct xen_sysctl_cpupool_op *c = &op->u.cpupool_op;
        static const char *const names[] = { "?", "CREATE", "DESTROY", "INFO", "ADDCPU", "RMCPU", "MOVEDOMAIN", "FREEINFO" };
        printf(" cpupool_op %s", names[c->op & 7]);
        FIELD(c, cpupool_id); FIELD(c, sched_id); FIELD(c, domid); FIELD(c, cpu); bitmap("cpumap", &c->cpumap);
        break;
    }
    case XEN_SYSCTL_scheduler_op: {
        const struct xen_sysctl_scheduler_op *s = &op->u.scheduler_op;
        printf(" scheduler_op %s", s->cmd == XEN_SYSCTL_SCHEDOP_putinfo ? "putinfo" : "getinfo");
        FIELD(s, cpupool_id);
        if (s->sched_id == XEN_SCHEDULER_CREDIT) {
            printf(" credit"); FIELD(s, u.sched_credit.tslice_ms); FIELD(s, u.sched_credit.ratelimit_us);
            FIELD(s, u.sched_credit.vcpu_migr_delay_us);
        } else if (s->sched_id == XEN_SCHEDULER_CREDIT2) {
            printf(" credit2"); FIELD(s, u.sched_credit2.ratelimit_us);
        } else printf(" OTHER");
        break;
    }
    case XEN_SYSCTL_get_cpu_featureset: {
        const struct xen_sysctl_cpu_featureset *f = &op->u.cpu_featureset;
        printf(" get_cpu_featureset"); FIELD(f, index); FIELD(f, nr_features);
        printf(" null=%d", !HANDLE(f->features));
        break;
    }
    case XEN_SYSCTL_get_cpu_policy: {
        const struct xen_sysctl_cpu_policy *c = &op->u.cpu_policy;
        printf(" get_cpu_policy"); FIELD(c, index); FIELD(c, nr_leaves); FIELD(c, nr_msrs);
        printf(" apart=%lld", (long long)(HANDLE(c->msrs) - HANDLE(c->leaves)));
        break;
    }
    default: printf(" UNKNOWN %u", op->cmd);
    }
}

static const char *space(unsigned int number)
{
    return number == XENMAPSPACE_shared_info ? "shared_info" : number == XENMAPSPACE_grant_table ? "grant_table"
           : number == XENMAPSPACE_gmfn ? "gmfn" : "OTHER";
}

static void read_memory(uint64_t cmd, const void *arg)
{
    switch (cmd) {
    case XENMEM_populate_physmap: case XENMEM_claim_pages: case XENMEM_decrease_reservation: {
        const struct xen_memory_reservation *r = arg;
        printf("memory %s", cmd == XENMEM_claim_pages ? "claim_pages"
               : cmd == XENMEM_populate_physmap ? "populate_physmap" : "decrease_reservation");
        FIELD(r, domid); FIELD(r, nr_extents); FIELD(r, extent_order); FIELD(r, mem_flags);
        if (cmd != XENMEM_claim_pages) {
            const xen_pfn_t *extents = at(HANDLE(r->extent_start));
            for (xen_ulong_t i = 0; i < r->nr_extents; i++)
                printf(" %#lx", (unsigned long)extents[i]);
        }
        break;
    }
    case XENMEM_set_pod_target: {
        const struct xen_pod_target *t = arg;
        printf("memory set_pod_target"); FIELD(t, domid); FIELD(t, target_pages);
        break;
    }
    case XENMEM_add_to_physmap: {
        const struct xen_add_to_physmap *a = arg;
        printf("memory add_to_physmap");
        FIELD(a, domid); FIELD(a, size); FIELD(a, idx); FIELD(a, gpfn);
        printf(" space=%s", space(a->space));
        break;
    }
    case XENMEM_set_memory_map: {
        const struct xen_foreign_memory_map *m = arg;
        printf("memory set_memory_map"); FIELD(m, domid); FIELD(m, map.nr_entries);
        /* The entries are the BIOS's: no structure in the headers. */
        hex("entries", at(HANDLE(m->map.buffer)), 20 * m->map.nr_entries);
        break;
    }
    case XENMEM_maximum_ram_page: printf("memory maximum_ram_page"); break;
    case XENMEM_current_reservation: case XENMEM_maximum_reservation: case XENMEM_maximum_gpfn:
        printf("memory %s domid=%u", cmd == XENMEM_current_reservation ? "current_reservation"
               : cmd == XENMEM_maximum_gpfn ? "maximum_gpfn" : "maximum_reservation", *(const domid_t *)arg);
        break;
    case XENMEM_add_to_physmap_batch: {
        const struct xen_add_to_physmap_batch *a = arg;
        printf("memory add_to_physmap_batch"); FIELD(a, domid); FIELD(a, size);
        printf(" space=%s", space(a->space));
        const xen_ulong_t *idxs = at(HANDLE(a->idxs));
        const xen_pfn_t *gpfns = at(HANDLE(a->gpfns));
        for (unsigned int i = 0; i < a->size; i++)
            printf(" (%#lx %#lx)", (unsigned long)idxs[i], (unsigned long)gpfns[i]);
        words("errs", at(HANDLE(a->errs)), a->size);
        break;
    }
    case XENMEM_remove_from_physmap: {
        const struct xen_remove_from_physmap *r = arg;
        printf("memory remove_from_physmap"); FIELD(r, domid); FIELD(r, gpfn);
        break;
    }
    case XENMEM_reserved_device_memory_map: {
        const struct xen_reserved_device_memory_map *r = arg;
        printf("memory reserved_device_memory_map %s", r->flags == XENMEM_RDM_ALL ? "ALL" : "OTHER");
        FIELD(r, nr_entries);
        at(HANDLE(r->buffer) + r->nr_entries * sizeof(xen_reserved_device_memory_t) - 1);
        break;
    }
    case XENMEM_machine_memory_map: {
        const struct xen_memory_map *m = arg;
        printf("memory machine_memory_map"); FIELD(m, nr_entries);
        at(HANDLE(m->buffer) + m->nr_entries * 20 - 1);
        break;
    }
    case XENMEM_acquire_resource: {
        const struct xen_mem_acquire_resource *r = arg;
        printf("memory acquire_resource %s", r->type == XENMEM_resource_grant_table ? "grant_table" : "OTHER");
        FIELD(r, domid); FIELD(r, id); FIELD(r, nr_frames); FIELD(r, pad); FIELD(r, frame);
        if (r->nr_frames) words("list", at(HANDLE(r->frame_list)), 2 * r->nr_frames);
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
    case __HYPERVISOR_memory_op: read_memory(args[0], args[1] ? at(args[1]) : NULL); break;
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
        case XENVER_get_features: printf("get_features"); FIELD((const struct xen_feature_info *)at(args[1]), submap_idx); break;
        case XENVER_build_id:
            printf("build_id"); FIELD((const struct xen_build_id *)at(args[1]), len); break;
        default: printf("UNKNOWN %llu", (unsigned long long)args[0]);
        }
        break;
    case __HYPERVISOR_physdev_op:
        if (args[0] == PHYSDEVOP_map_pirq) {
            const struct physdev_map_pirq *m = at(args[1]);
            printf("physdev_op map_pirq %s", m->type == MAP_PIRQ_TYPE_GSI ? "gsi" : m->type == MAP_PIRQ_TYPE_MSI ? "msi" : "OTHER");
            FIELD(m, domid); printf(" index=%d pirq=%d", m->index, m->pirq);
            FIELD(m, bus); FIELD(m, devfn); FIELD(m, entry_nr); FIELD(m, table_base);
        } else {
            const struct physdev_unmap_pirq *u = at(args[1]);
            printf("physdev_op %s", args[0] == PHYSDEVOP_unmap_pirq ? "unmap_pirq" : "OTHER");
            FIELD(u, domid); FIELD(u, pirq);
        }
        break;
    case __HYPERVISOR_multicall: {
        const multicall_entry_t *m = at(args[0]);
        printf("multicall\n");
        for (uint64_t i = 0; i < args[1]; i++) {
            uint64_t sub[5];
            for (int k = 0; k < 5; k++)
                sub[k] = m[i].args[k];
            printf("  ");
            read_call(m[i].op, sub);
        }
        return;
    }
    case __HYPERVISOR_event_channel_op: {
        if (args[0] == EVTCHNOP_status) {
            const struct evtchn_status *s = at(args[1]);
            printf("event_channel_op status"); FIELD(s, dom); FIELD(s, port);
            break;
        }
        if (args[0] == EVTCHNOP_reset) {
            printf("event_channel_op reset"); FIELD((const struct evtchn_reset *)at(args[1]), dom);
            break;
        }
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
        PARAM(VIRIDIAN); PARAM(HPET_ENABLED); PARAM(ACPI_S_STATE); PARAM(VM86_TSS); PARAM(VPT_ALIGN);
        PARAM(BUFIOREQ_EVTCHN); PARAM(TRIPLE_FAULT_REASON); PARAM(IOREQ_SERVER_PFN);
        PARAM(NR_IOREQ_SERVER_PAGES); PARAM(VM86_TSS_SIZED); PARAM(MCA_CAP); PARAM(ALTP2M);
        case HVM_PARAM_VM_GENERATION_ID_ADDR: printf(" index=VM_GENERATION_ID_ADDR"); break;
        default: printf(" index=UNKNOWN %u", p->index);
        }
        break;
    }
    case __HYPERVISOR_hypfs_op: {
        printf("hypfs_op %s path=%s path_bytes=%llu", args[0] == XEN_HYPFS_OP_read ? "read" : "OTHER",
               (const char *)at(args[1]), (unsigned long long)args[2]);
        at(args[3]);
        printf(" entry=%d", args[4] == sizeof(struct xen_hypfs_direntry));
        break;
    }
    case __HYPERVISOR_platform_op: {
        const struct xen_platform_op *p = at(args[0]);
        printf("platform_op version=%d", p->interface_version == XENPF_INTERFACE_VERSION);
        if (p->cmd != XENPF_resource_op) { printf(" ?"); break; }
        const struct xenpf_resource_op *r = &p->u.resource_op;
        const xenpf_resource_entry_t *e = at(HANDLE(r->entries));
        printf(" resource_op"); FIELD(r, cpu);
        for (uint32_t i = 0; i < r->nr_entries; i++)
            printf(" (cmd=%u rsvd=%u idx=%#llx val=%#llx)", e[i].u.cmd, e[i].rsvd,
                   (unsigned long long)e[i].idx, (unsigned long long)e[i].val);
        break;
    }
    case __HYPERVISOR_xsm_op: {
        const struct xen_flask_op *f = at(args[0]);
        printf("xsm_op version=%d", f->interface_version == XEN_FLASK_INTERFACE_VERSION);
        switch (f->cmd) {
        case FLASK_GETENFORCE: printf(" getenforce"); break;
        case FLASK_SETENFORCE: printf(" setenforce"); FIELD(f, u.enforce.enforcing); break;
        case FLASK_LOAD:
            printf(" load"); FIELD(f, u.load.size);
            hex("buffer", at(HANDLE(f->u.load.buffer)), f->u.load.size);
            break;
        default: printf(" OTHER %u", f->cmd);
        }
        break;
    }
    case __HYPERVISOR_mmuext_op: {
        const struct mmuext_op *m = at(args[0]);
        printf("mmuext_op count=%llu domid=%llu", (unsigned long long)args[1], (unsigned long long)args[3]);
        for (uint64_t i = 0; i < args[1]; i++, m++) {
            printf(" cmd=%s", m->cmd == MMUEXT_PIN_L4_TABLE ? "PIN_L4_TABLE"
                   : m->cmd == MMUEXT_PIN_L1_TABLE ? "PIN_L1_TABLE"
                   : m->cmd == MMUEXT_UNPIN_TABLE ? "UNPIN_TABLE" : "OTHER");
            FIELD(m, arg1.mfn);
        }
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

    struct evtchn_status es = { .status = EVTCHNSTAT_interdomain, .vcpu = 100,
                                .u.interdomain = { .dom = 101, .port = 102 } };
    answer(&es, sizeof(es));
    struct xen_domctl_ext_vcpucontext x = { .vcpu = 110, .syscall32_callback_eip = 111, .sysenter_callback_eip = 112,
        .syscall32_callback_cs = 113, .sysenter_callback_cs = 114, .syscall32_disables_events = 115,
        .sysenter_disables_events = 116, .vmce = { .caps = 117, .mci_ctl2_bank0 = 118, .mci_ctl2_bank1 = 119,
        .mcg_ext_ctl = 120 } };
    answer(&x, sizeof(x));
    struct xen_domctl_tsc_info t = { .tsc_mode = 121, .gtsc_khz = 122, .incarnation = 123, .elapsed_nsec = 124 };
    answer(&t, sizeof(t));
    struct xen_domctl_shadow_op so = { .pages = 9, .stats = { .fault_count = 131, .dirty_count = 132 } };
    answer(&so, sizeof(so));
    struct xen_domctl_scheduler_op sc = { .sched_id = XEN_SCHEDULER_RTDS,
        .u.rtds = { .period = 141, .budget = 142, .flags = XEN_DOMCTL_SCHEDRT_extra } };
    answer(&sc, sizeof(sc));
    struct xen_sysctl_cpupool_op cp = { .cpupool_id = 151, .sched_id = 152, .n_dom = 153 };
    answer(&cp, sizeof(cp));
    struct xen_sysctl_scheduler_op st = {
        .u.sched_credit = { .tslice_ms = 161, .ratelimit_us = 162, .vcpu_migr_delay_us = 163 } };
    answer(&st, sizeof(st));
    struct xen_sysctl_availheap ah = { .avail_bytes = 171 };
    answer(&ah, sizeof(ah));
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
