//! Names that compiled code refers to and that a C library and the unwinder would bring.
//!
//! In assembly, because the compiler would turn a loop here into a call of the same function.

use core::arch::global_asm;

global_asm!(
    r#"
    .section .text.runtime, "ax", @progbits
    .globl memcpy
memcpy:
    movq %rdi, %rax
    movq %rdx, %rcx
    rep movsb
    ret

    .globl memmove
memmove:
    movq %rdi, %rax
    movq %rdx, %rcx
    movq %rdi, %r8
    subq %rsi, %r8
    cmpq %rdx, %r8
    jb 1f
    rep movsb
    ret
1:  leaq -1(%rdi, %rdx), %rdi
    leaq -1(%rsi, %rdx), %rsi
    std
    rep movsb
    cld
    ret

    .globl memset
memset:
    movq %rdi, %r8
    movl %esi, %eax
    movq %rdx, %rcx
    rep stosb
    movq %r8, %rax
    ret

    .globl memcmp
    .globl bcmp
memcmp:
bcmp:
    xorl %eax, %eax
    movq %rdx, %rcx
    testq %rcx, %rcx
    jz 2f
    repe cmpsb
    movzbl -1(%rdi), %eax
    movzbl -1(%rsi), %ecx
    subl %ecx, %eax
2:  ret

    # Named by unwind tables of the precompiled core library; nothing here unwinds.
    .globl rust_eh_personality
rust_eh_personality:
    ud2
    "#,
    options(att_syntax)
);
