# The PVH way in: 32-bit protected mode, flat segments, paging and interrupts off, ebx holds the
# physical address of hvm_start_info. Maps the first 4 GiB onto themselves (the special pages of
# the store and the console lie just below 4 GiB), switches SSE on, which the compiler's code
# uses, and goes to 64-bit mode.

    .section .text.entry, "ax", @progbits
    .code32
    .globl pvh_entry
    .type pvh_entry, @function
pvh_entry:
    cli
    cld

    # 2048 pages of 2 MiB: present, writable, large.
    movl $boot_pd, %edi
    movl $0x83, %eax
    movl $2048, %ecx
1:  movl %eax, (%edi)
    movl $0, 4(%edi)
    addl $0x200000, %eax
    addl $8, %edi
    decl %ecx
    jnz 1b

    # Four page directories lie in a row.
    movl $boot_pdpt, %edi
    movl $boot_pd + 3, %eax
    movl $4, %ecx
2:  movl %eax, (%edi)
    movl $0, 4(%edi)
    addl $4096, %eax
    addl $8, %edi
    decl %ecx
    jnz 2b

    movl $boot_pdpt + 3, boot_pml4
    movl $0, boot_pml4 + 4
    movl $boot_pml4, %eax
    movl %eax, %cr3

    # CR4: PAE, OSFXSR, OSXMMEXCPT.
    movl %cr4, %eax
    orl $0x620, %eax
    movl %eax, %cr4

    # EFER.LME
    movl $0xc0000080, %ecx
    rdmsr
    orl $0x100, %eax
    wrmsr

    # CR0: PG, NE, MP and PE on, EM and TS off.
    movl %cr0, %eax
    andl $~0xc, %eax
    orl $0x80000023, %eax
    movl %eax, %cr0

    lgdt boot_gdt_pointer
    ljmp $8, $pvh_entry64

    .code64
pvh_entry64:
    movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    xorl %eax, %eax
    movl %eax, %fs
    movl %eax, %gs
    movq $boot_stack_end, %rsp
    xorl %ebp, %ebp
    movl %ebx, %edi
    call pvh_main
    ud2

    .section .rodata.boot_gdt, "a", @progbits
    .balign 8
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff    # 8: 64-bit code
    .quad 0x00cf93000000ffff    # 16: data
boot_gdt_pointer:
    .short boot_gdt_pointer - boot_gdt - 1
    .long boot_gdt

    .section .bss.boot, "aw", @nobits
    .balign 4096
boot_pml4:
    .skip 4096
boot_pdpt:
    .skip 4096
boot_pd:
    .skip 4 * 4096
