# The PV way in. The builder has made page tables, filled hypercall_page and cleared .bss;
# events are masked; rsi holds the virtual address of start_info.

    .section .text.hypercall_page, "ax", @progbits
    .balign 4096
    .globl hypercall_page
hypercall_page:
    .skip 4096, 0xcc

    .section .text.entry, "ax", @progbits
    .globl pv_entry
    .type pv_entry, @function
pv_entry:
    cld
    movq $boot_stack_end, %rsp
    xorl %ebp, %ebp
    movq %rsi, %rdi
    call pv_main
    ud2

    .section .bss.boot, "aw", @nobits
    .balign 4096
    .globl boot_stack
boot_stack:
    .skip {stack_bytes}
boot_stack_end:
