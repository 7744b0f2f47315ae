//! What only some scenarios want in dom0, beside the image: services for storage.
//!
//! A scenario asks for an addition with a line `# lab-addition: NAME`. It is an archive of its own in the cache,
//! unpacked over the image, so that everybody else's boots stay as short as they are.

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

pub(crate) const ADDITIONS: &[Addition] = &[Addition {
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
}];

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
