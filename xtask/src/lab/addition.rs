//! What only some scenarios want in dom0, beside the image: services for storage.
//!
//! A scenario asks for an addition with a line `# lab-addition: NAME`. All that it asks for are one archive in the
//! cache, unpacked over the image, so that everybody else's boots stay as short as they are.

/// Programs with their packages, and kernel modules that may be loaded with them.
pub(crate) struct Addition {
    pub name: &'static str,
    pub packages: &'static [&'static str],
    /// Programs that keep the folder they have in their package.
    pub programs: &'static [&'static str],
    /// Names for programs, and what they lead to.
    pub links: &'static [(&'static str, &'static str)],
    /// Plain folders that are taken whole.
    pub folders: &'static [&'static str],
    pub modules: &'static [&'static str],
}

pub(crate) const ADDITIONS: &[Addition] = &[
    Addition {
        name: "lvm",
        packages: &[
            "lvm2",
            "dmsetup",
            "thin-provisioning-tools",
            "util-linux",
            "libaio1",
            "libblkid1",
            "libdevmapper1.02.1",
            "libdevmapper-event1.02.1",
            "libedit2",
            "libexpat1",
            "libstdc++6",
            "libsystemd0",
            "libudev1",
            // What those need.
            "libcap2",
            "libgcrypt20",
            "libgpg-error0",
            "liblz4-1",
            "liblzma5",
            "libzstd1",
        ],
        programs: &["sbin/lvm", "sbin/dmsetup", "sbin/blkdiscard", "usr/sbin/pdata_tools"],
        links: &[
            ("usr/sbin/thin_check", "pdata_tools"),
            ("usr/sbin/thin_dump", "pdata_tools"),
            ("usr/sbin/thin_repair", "pdata_tools"),
        ],
        folders: &[],
        modules: &["dm-mod", "dm-thin-pool", "dm-snapshot"],
    },
    Addition {
        name: "nfs",
        packages: &[
            "nfs-common",
            "nfs-kernel-server",
            "mount",
            "util-linux",
            "libblkid1",
            "libcom-err2",
            "libgssapi-krb5-2",
            "libk5crypto3",
            "libkeyutils1",
            "libkrb5-3",
            "libkrb5support0",
            "libmount1",
            "libnsl2",
            "libtirpc3",
            "libwrap0",
        ],
        programs: &[
            "bin/mount",
            "bin/umount",
            "sbin/mount.nfs",
            "usr/sbin/rpc.nfsd",
            "usr/sbin/rpc.mountd",
            "usr/sbin/exportfs",
        ],
        links: &[("usr/sbin/umount.nfs", "mount.nfs")],
        folders: &[],
        modules: &["nfsd", "nfs", "nfsv4"],
    },
    Addition {
        name: "qemu",
        packages: &[
            "qemu-utils",
            "libaio1",
            "libffi8",
            "libfuse3-3",
            "libglib2.0-0",
            "libgmp10",
            "libgnutls30",
            "libhogweed6",
            "libidn2-0",
            "libnettle8",
            "libnuma1",
            "libp11-kit0",
            "libtasn1-6",
            "libunistring2",
            "liburing2",
        ],
        programs: &["usr/bin/qemu-img", "usr/bin/qemu-nbd"],
        links: &[],
        folders: &[],
        modules: &["nbd"],
    },
    Addition {
        name: "iscsi",
        packages: &[
            "open-iscsi",
            "tgt",
            "libaio1",
            "libblkid1",
            "libgcrypt20",
            "libgpg-error0",
            "libibverbs1",
            "libisns0",
            "libkmod2",
            "liblz4-1",
            "libmount1",
            "libnl-3-200",
            "libnl-route-3-200",
            "libopeniscsiusr",
            "librdmacm1",
            "libssl3",
            "libsystemd0",
        ],
        programs: &["sbin/iscsid", "sbin/iscsiadm", "usr/sbin/tgtd", "usr/sbin/tgtadm"],
        links: &[],
        folders: &["etc/iscsi"],
        modules: &["iscsi_tcp", "sd_mod"],
    },
    Addition {
        name: "libvirt",
        packages: &[
            "libvirt-daemon",
            "libvirt-daemon-driver-xen",
            "libvirt-clients",
            "libvirt0",
            "libacl1",
            "libapparmor1",
            "libaudit1",
            "libblkid1",
            "libbrotli1",
            "libc6",
            "libcap-ng0",
            "libcom-err2",
            "libcurl3-gnutls",
            "libffi8",
            "libgcc-s1",
            "libglib2.0-0",
            "libgmp10",
            "libgnutls30",
            "libgssapi-krb5-2",
            "libhogweed6",
            "libicu72",
            "libidn2-0",
            "libk5crypto3",
            "libkeyutils1",
            "libkrb5-3",
            "libkrb5support0",
            "libldap-2.5-0",
            "liblzma5",
            "libmount1",
            "libnettle8",
            "libnghttp2-14",
            "libnl-3-200",
            "libnuma1",
            "libp11-kit0",
            "libpcre2-8-0",
            "libpsl5",
            "libreadline8",
            "librtmp1",
            "libsasl2-2",
            "libselinux1",
            "libssh-4",
            "libssh2-1",
            "libssl3",
            "libstdc++6",
            "libtasn1-6",
            "libtinfo6",
            "libtirpc3",
            "libunistring2",
            "libuuid1",
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
            "libxml2",
            "libyajl2",
            "libzstd1",
            "zlib1g",
        ],
        programs: &[
            "usr/sbin/libvirtd",
            "usr/bin/virsh",
            "usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_libxl.so",
        ],
        folders: &["usr/share/libvirt/cpu_map"],
        links: &[],
        modules: &[],
    },
];

/// The additions that a scenario's text asks for.
pub(crate) fn wanted(text: &str) -> Vec<&'static Addition> {
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# lab-addition: "))
        .map(str::trim)
        .collect();
    ADDITIONS.iter().filter(|addition| names.contains(&addition.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_gets_what_it_asks_for_and_no_more() {
        let names = |text| wanted(text).iter().map(|it| it.name).collect::<Vec<_>>();
        assert_eq!(names("# Tests.\n# lab-addition: lvm\necho\n"), ["lvm"]);
        assert_eq!(names("echo '# lab-addition: lvm'\n"), [""; 0]);
    }
}
