# Xen ELF notes: how a builder finds its way into this image.
# Each note: sizes of name and description, type, "Xen", description, all padded to 4 bytes.
# Source: xen elfnote.h.

    .macro xen_note type, kind:vararg
    .pushsection .note.Xen, "a", @note
    .balign 4
    .long 4
    .long 2f - 1f
    .long \type
    .asciz "Xen"
1:  \kind
2:  .balign 4
    .popsection
    .endm

    xen_note 6,  .asciz "xylem-unikernel"   # GUEST_OS
    xen_note 5,  .asciz "xen-3.0"           # XEN_VERSION: the ABI, not the release
    xen_note 8,  .asciz "generic"           # LOADER
    xen_note 10, .asciz ""                  # FEATURES: none needed
    xen_note 3,  .quad 0                    # VIRT_BASE: virtual and pseudo-physical are the same
    xen_note 4,  .quad 0                    # PADDR_OFFSET
    xen_note 1,  .quad pv_entry             # ENTRY: PV, 64-bit
    xen_note 2,  .quad hypercall_page       # HYPERCALL_PAGE: filled by the builder (PV)
    xen_note 14, .long 1                    # SUSPEND_CANCEL: a suspend hypercall may return 1
    xen_note 18, .long pvh_entry            # PHYS32_ENTRY: PVH, 32-bit
