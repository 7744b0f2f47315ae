//! What a PV or PVH domain boots: a kernel's file, or what a bootloader finds on its first disk.

use xen::DomainKind;

use super::shown;
use super::syntax::Value;
use super::vm::{Findings, Reader, Result};
use crate::config::{Bootloader, DiskConfig, Shim};

/// GRUB as a guest's kernel, from Debian's `grub-xen-host`: for PV guests of 32 and 64 bits, and for PVH.
const GRUB_32: &str = "/usr/lib/grub-xen/grub-i386-xen.bin";
const GRUB_64: &str = "/usr/lib/grub-xen/grub-x86_64-xen.bin";
const GRUB_PVH: &str = "/usr/lib/grub-xen/grub-i386-xen_pvh.bin";

/// Keys that mean something beside `bootloader` only.
const BESIDE: [&str; 2] = ["bootloader_args", "bootloader_user"];

impl Reader<'_> {
    /// The kernel that `firmware` stands for, of a PV or PVH guest.
    pub(super) fn grub(&self, kind: DomainKind) -> Result<Option<&'static str>> {
        const KEY: &str = "firmware";
        let Some(word) = self.path(KEY)?.filter(|_| kind != DomainKind::Hvm) else {
            return Ok(None);
        };
        let fault = |problem: String| Err(self.error(KEY, self.place(KEY), problem));
        if self.path("kernel")?.is_some() {
            return fault("not together with kernel: it stands for one".to_owned());
        }
        match (word, kind) {
            ("pvgrub32" | "pvgrub64", DomainKind::Pvh) => Ok(Some(GRUB_PVH)),
            ("pvgrub32", _) => Ok(Some(GRUB_32)),
            ("pvgrub64", _) => Ok(Some(GRUB_64)),
            (other, _) => {
                let problem = "expected pvgrub32 or pvgrub64; name another kernel with kernel=";
                fault(format!("{}: {problem}", shown(other)))
            }
        }
    }

    /// A PVH guest's.
    pub(super) fn shim(&self, kind: DomainKind) -> Result<Option<Box<Shim>>> {
        if kind != DomainKind::Pvh || !self.flag("pvshim", false)? {
            return Ok(None);
        }
        let cmdline = self.path("pvshim_cmdline")?.unwrap_or(Shim::CMDLINE);
        let cmdline = match self.path("pvshim_extra")? {
            Some(extra) => format!("{cmdline} {extra}"),
            None => cmdline.to_owned(),
        };
        Ok(Some(Box::new(Shim { path: self.path("pvshim_path")?.map(str::to_owned), cmdline })))
    }

    pub(super) fn bootloader(
        &self,
        kind: DomainKind,
        disks: &[DiskConfig],
        found: &mut Findings,
    ) -> Option<Box<Bootloader>> {
        let program = found.take(self.path("bootloader").map(|it| it.map(str::to_owned)));
        let Some(program) = program else {
            self.warn_if_set(&BESIDE, "ignored: it means nothing without bootloader", found);
            return None;
        };
        if kind == DomainKind::Hvm {
            let ignored = "ignored, as xl ignores it: an HVM domain boots by its BIOS";
            self.warn_if_set(&["bootloader"], ignored, found);
            self.warn_if_set(&BESIDE, ignored, found);
            return None;
        }
        let fault = |problem: &str| self.error("bootloader", self.place("bootloader"), problem);
        if program.contains('/') && !program.starts_with('/') {
            found
                .faults
                .push(fault("expected a path from / on, or the name of one of Xen's programs"));
        }
        if disks.first().is_some_and(DiskConfig::has_own_script) {
            found.faults.push(fault(
                "it reads the first disk before there is a domain, and that disk's script needs one",
            ));
        }
        if disks.first().is_some_and(|disk| disk.backend.is_some()) {
            found.faults.push(fault(
                "it reads the first disk in domain 0, and that disk is in a driver domain; name its kernel by kernel=",
            ));
        }
        // One that cannot be read has its own fault.
        let has_disks = self.settings.contains_key("disk");
        if disks.first().is_some_and(DiskConfig::is_empty) || (disks.is_empty() && !has_disks) {
            let problem = "needs a disk with the guest's kernel, the first one, as in \
                           disk = [ \"/srv/web.img,raw,xvda,w\" ]";
            found.faults.push(fault(problem));
        }
        let user = found.take(self.path("bootloader_user").map(|it| it.map(str::to_owned)));
        if user.as_deref() == Some("root") {
            let problem = "a bootloader reads what its guest wrote, and does not run as root";
            found.faults.push(self.error(
                "bootloader_user",
                self.place("bootloader_user"),
                problem,
            ));
        }
        let arguments = found.take(self.bootloader_arguments());
        Some(Box::new(Bootloader { program, arguments, user }))
    }

    /// A list, or one string of words, as xl reads it.
    fn bootloader_arguments(&self) -> Result<Vec<String>> {
        const KEY: &str = "bootloader_args";
        let words: Vec<String> = match self.settings.get(KEY).map(|it| &it.value) {
            None => Vec::new(),
            Some(Value::Atom(text)) => text.split_ascii_whitespace().map(str::to_owned).collect(),
            Some(Value::List(_)) => {
                self.list(KEY)?.into_iter().map(|(_, text, _)| text.to_owned()).collect()
            }
        };
        match words.iter().any(|word| word.contains(char::is_control)) {
            true => Err(self.error(KEY, self.place(KEY), "expected no control characters")),
            false => Ok(words),
        }
    }

    fn warn_if_set(&self, keys: &[&str], problem: &str, found: &mut Findings) {
        for key in keys {
            let setting = self.settings.get(*key);
            let warning = setting.and_then(|it| self.unless_harmless(key, it, &[], problem));
            found.warnings.extend(warning);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xlcfg::{Source, parse};

    fn read(lines: &str) -> std::result::Result<Option<Bootloader>, String> {
        let text = format!("name='g'\nmemory=64\n{lines}\n");
        let read = parse(Source { file: "g", text: &text, overrides: &[] });
        read.map(|it| it.options.bootloader.map(|it| *it)).map_err(|error| error.to_string())
    }

    #[test]
    fn its_words_are_read_as_xl_reads_them() {
        let with = |arguments: &[&str], user: Option<&str>| {
            let arguments = arguments.iter().map(|&it| it.to_owned()).collect();
            let (program, user) = ("pygrub".to_owned(), user.map(str::to_owned));
            Ok(Some(Bootloader { program, arguments, user }))
        };
        let on_disk = |lines: &str| read(&format!("disk=['/d,raw,xvda,w']\n{lines}"));
        assert_eq!(on_disk("bootloader='pygrub'"), with(&[], None));
        assert_eq!(
            on_disk("bootloader='pygrub'\nbootloader_args='--entry=2  -q'"),
            with(&["--entry=2", "-q"], None)
        );
        assert_eq!(
            on_disk("bootloader='pygrub'\nbootloader_args=['--args=a b']\nbootloader_user='boot'"),
            with(&["--args=a b"], Some("boot"))
        );
        assert_eq!(on_disk("bootloader='pygrub'\ntype='hvm'"), Ok(None));
        assert_eq!(read("kernel='/k'\nbootloader_args='x'"), Ok(None));
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for (lines, expected) in [
            (
                "",
                "needs a disk with the guest's kernel, the first one, as in disk = [ \"/srv/web.img,raw,xvda,w\" ]",
            ),
            (
                "disk=['/d,raw,xvda,w']\nbootloader='./pygrub'",
                "expected a path from / on, or the name of one of Xen's programs",
            ),
            (
                "disk=['/d,raw,xvda,w']\nbootloader_user='root'",
                "a bootloader reads what its guest wrote, and does not run as root",
            ),
        ] {
            let error = read(&format!("bootloader='pygrub'\n{lines}")).unwrap_err();
            assert!(error.ends_with(expected) && error.starts_with("g:"), "{error}");
        }
    }
}
