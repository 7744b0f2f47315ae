//! What is inside the lab's dom0 and guests: package, program, file and kernel module names.
//!
//! Data only. `image.rs` follows it; a change here makes a new image.

/// A Xen release that the lab can boot, with its own tools.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Series {
    /// Debian 12's.
    #[default]
    Xen4_17,
    /// Debian 13's, with the libraries that its tools need; everything else stays Debian 12's.
    Xen4_20,
}

impl Series {
    pub const ALL: [Self; 2] = [Self::Xen4_17, Self::Xen4_20];

    /// As Debian puts it into package and folder names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xen4_17 => "4.17",
            Self::Xen4_20 => "4.20",
        }
    }

    /// The Debian suite that has it, if it is not this machine's.
    pub fn suite(self) -> Option<&'static str> {
        match self {
            Self::Xen4_17 => None,
            Self::Xen4_20 => Some("trixie"),
        }
    }

    /// A name below with this series in it: those below name the default one.
    pub fn named(self, name: &str) -> String {
        name.replace(Self::default().name(), self.name())
    }
}

impl std::str::FromStr for Series {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        let known = Self::ALL.map(Self::name).join(" and ");
        Self::ALL
            .into_iter()
            .find(|series| series.name() == name)
            .ok_or_else(|| anyhow::anyhow!("the lab has no Xen {name}; it has {known}"))
    }
}

/// Metapackage that names the current kernel package.
pub(crate) const KERNEL_METAPACKAGE: &str = "linux-image-amd64";

/// Packages of the Xen series' suite.
pub(crate) const XEN_PACKAGES: &[&str] = &[
    // Xen and everything that comes from its source.
    "xen-hypervisor-4.17-amd64",
    "xen-utils-4.17",
    "xen-utils-common",
    "xenstore-utils",
    "libxencall1",
    "libxendevicemodel1",
    "libxenevtchn1",
    "libxenforeignmemory1",
    "libxengnttab1",
    "libxenhypfs1",
    "libxenmisc4.17",
    "libxenstore4",
    "libxentoolcore1",
    "libxentoollog1",
    // Libraries that these and our own programs need.
    "libc6",
    "libgcc-s1",
    "libbz2-1.0",
    "liblzma5",
    "libncurses6",
    "libtinfo6",
    "libuuid1",
    "libyajl2",
    "libzstd1",
    "zlib1g",
];

/// Packages of this machine's suite, beside the kernel.
pub(crate) const PACKAGES: &[&str] = &[
    "libc-bin",
    // What Debian's hotplug scripts run. The real programs rather than busybox's, so that the
    // time xl spends in them is the time it spends on a Debian host.
    "bash",
    "coreutils",
    "grep",
    "iproute2",
    "mawk",
    "mount",
    "sed",
    "util-linux",
    "libacl1",
    "libattr1",
    "libbpf1",
    "libbsd0",
    "libcap2",
    "libelf1",
    "libmd0",
    "libmnl0",
    "libpcre2-8-0",
    "libselinux1",
    "libsmartcols1",
    // Everything else a small system needs, and a way to count system calls and forks.
    "busybox-static",
    "strace",
    "libunwind8",
];

/// Programs that keep the folder they have in their package.
pub(crate) const PROGRAMS: &[&str] = &[
    "usr/lib/xen-4.17/bin/libxl-save-helper",
    "usr/lib/xen-4.17/bin/lsevtchn",
    "usr/lib/xen-4.17/bin/oxenstored",
    "usr/lib/xen-4.17/bin/xen-cpuid",
    "usr/lib/xen-4.17/bin/xen-diag",
    "usr/lib/xen-4.17/bin/xen-hptool",
    "usr/lib/xen-4.17/bin/xen-hvmctx",
    "usr/lib/xen-4.17/bin/xen-init-dom0",
    "usr/lib/xen-4.17/bin/xenconsole",
    "usr/lib/xen-4.17/bin/xenconsoled",
    "usr/lib/xen-4.17/bin/xenctx",
    "usr/lib/xen-4.17/bin/xenstore-control",
    "usr/lib/xen-4.17/bin/xenstored",
    "usr/lib/xen-4.17/bin/xentop",
    "usr/lib/xen-4.17/bin/xl",
    "usr/bin/xenstore",
    "usr/sbin/xenhypfs",
    "usr/bin/strace",
    "usr/bin/flock",
    "usr/bin/mawk",
    "usr/bin/cut",
    "usr/bin/dirname",
    "usr/bin/stat",
    "bin/bash",
    "bin/busybox",
    "bin/cat",
    "bin/grep",
    "bin/ip",
    "bin/mkdir",
    "bin/readlink",
    "bin/rm",
    "bin/sed",
    "sbin/ldconfig",
    "sbin/losetup",
];

/// Names under `/usr/sbin` or `/usr/bin` for programs that live elsewhere. Debian puts a shell
/// wrapper there that looks for the running hypervisor's version; here there is only one.
pub(crate) const LINKS: &[(&str, &str)] = &[
    ("usr/sbin/lsevtchn", "../lib/xen-4.17/bin/lsevtchn"),
    ("usr/sbin/oxenstored", "../lib/xen-4.17/bin/oxenstored"),
    ("usr/sbin/xen-cpuid", "../lib/xen-4.17/bin/xen-cpuid"),
    ("usr/sbin/xen-diag", "../lib/xen-4.17/bin/xen-diag"),
    ("usr/sbin/xen-hptool", "../lib/xen-4.17/bin/xen-hptool"),
    ("usr/sbin/xen-hvmctx", "../lib/xen-4.17/bin/xen-hvmctx"),
    ("usr/sbin/xen-init-dom0", "../lib/xen-4.17/bin/xen-init-dom0"),
    ("usr/sbin/xenconsoled", "../lib/xen-4.17/bin/xenconsoled"),
    ("usr/sbin/xenctx", "../lib/xen-4.17/bin/xenctx"),
    ("usr/sbin/xenstored", "../lib/xen-4.17/bin/xenstored"),
    ("usr/sbin/xentop", "../lib/xen-4.17/bin/xentop"),
    ("usr/sbin/xl", "../lib/xen-4.17/bin/xl"),
    ("usr/bin/xenstore-control", "../lib/xen-4.17/bin/xenstore-control"),
    ("usr/bin/xenstore-chmod", "xenstore"),
    ("usr/bin/xenstore-exists", "xenstore"),
    ("usr/bin/xenstore-list", "xenstore"),
    ("usr/bin/xenstore-ls", "xenstore"),
    ("usr/bin/xenstore-read", "xenstore"),
    ("usr/bin/xenstore-rm", "xenstore"),
    ("usr/bin/xenstore-watch", "xenstore"),
    ("usr/bin/xenstore-write", "xenstore"),
    ("usr/bin/awk", "mawk"),
    ("usr/sbin/ip", "../bin/ip"),
    ("bin", "usr/bin"),
    ("sbin", "usr/sbin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib/x86_64-linux-gnu"),
];

/// Plain folders that are taken whole.
pub(crate) const FOLDERS: &[&str] = &["etc/xen"];

/// Libraries that nothing names in its file: loaded by name at run time (`libgcc_s` by libc, to
/// cancel a thread), or needed by Xylem's programs, which join the image later.
pub(crate) const EXTRA_LIBRARIES: &[&str] =
    &["libgcc_s.so.1", "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"];

/// Kernel modules that dom0's init loads, in this order; what they depend on comes by itself.
pub(crate) const DOM0_MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "xen-privcmd",
    "xenfs",
    "xen-evtchn",
    "xen-gntdev",
    "xen-gntalloc",
    "loop",
    "xen-blkback",
    "bridge",
    "xen-netback",
];

/// Kernel modules of dom0 that a scenario may load with `modprobe`.
pub(crate) const DOM0_SPARE_MODULES: &[&str] =
    &["ext4", "xen-blkfront", "xen-netfront", "xen-pciback"];

/// Kernel modules that the Linux guest's init loads.
pub(crate) const GUEST_MODULES: &[&str] = &["xen-blkfront", "xen-netfront", "ext4"];

/// Those that it loads if its command line asks for what they do.
pub(crate) const GUEST_SPARE_MODULES: &[&str] =
    &["9p", "9pnet_xen", "xen-pcifront", "virtio_pci", "virtio-rng", "button", "evdev"];

/// Dependencies that the modules do not name, because they go through a kernel interface.
pub(crate) const MODULE_DEPENDENCIES: &[(&str, &str)] =
    &[("ext4", "crc32c_generic"), ("libcrc32c", "crc32c_generic")];

/// What the guests' disk says about itself in `/hello.txt`.
pub(crate) const DISK_TEXT: &str = "hello from the xylem lab disk";

/// Size of the guests' disk image.
pub(crate) const DISK_BYTES: u64 = 4 << 20;
