//! libxl's files of a domain. Source: xen `tools/libs/light/libxl_internal.c` (their names) and
//! `libxl_types.idl` (their JSON, without default values).

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The files of a domain.
#[derive(Debug, Default)]
pub(super) struct Kept {
    files: Vec<PathBuf>,
    /// The file's name, and a configuration with the domain's kernel.
    pub(super) config: Option<(String, String)>,
    pub(super) is_libvirts: bool,
}

impl Kept {
    /// The files of the domain in this folder, as far as readable.
    pub(super) fn of(folder: &Path, domid: u16, uuid: &str) -> Self {
        let middle = format!(".{domid}.{uuid}.");
        let mut kept = Self::default();
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(what) = name
                .to_str()
                .and_then(|name| name.strip_prefix("userdata-"))
                .and_then(|rest| rest.split_once(&middle))
                .map(|(_, what)| what)
            else {
                continue;
            };
            let path = entry.path();
            match what {
                "libxl-json" => {
                    let json = std::fs::read(&path).ok();
                    let json = json.and_then(|bytes| serde_json::from_slice(trimmed(&bytes)).ok());
                    let text = json.and_then(|json: Value| configuration(&json));
                    kept.config = text.map(|text| (path.display().to_string(), text));
                    // The daemon has written its own by then.
                    continue;
                }
                "libvirt-xml" => kept.is_libvirts = true,
                _ => {}
            }
            kept.files.push(path);
        }
        kept
    }

    /// Removes what is not used for our domains.
    pub(super) fn forget(&self) -> std::io::Result<()> {
        self.files.iter().try_for_each(|file| match std::fs::remove_file(file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        })
    }
}

/// libxl's text is NUL-terminated.
fn trimmed(bytes: &[u8]) -> &[u8] {
    bytes.strip_suffix(b"\0").unwrap_or(bytes)
}

/// A domain's boot configuration and policies. None without a kernel, as with a bootloader.
fn configuration(json: &Value) -> Option<String> {
    let build = &json["b_info"];
    let kernel = build["kernel"].as_str().filter(|path| path.starts_with('/'))?;
    let kind = json["c_info"]["type"].as_str()?;
    let memory_mib = build["target_memkb"].as_u64().unwrap_or(0).max(1024) / 1024;
    let mut text = String::new();
    // Writing to a String cannot fail. The name is the domain's own.
    let _ = writeln!(text, "name = 'adopted'\ntype = {}", quoted(kind));
    let _ = writeln!(text, "kernel = {}\nmemory = {memory_mib}", quoted(kernel));
    for key in ["ramdisk", "cmdline"] {
        if let Some(value) = build[key].as_str().filter(|value| !value.is_empty()) {
            let _ = writeln!(text, "{key} = {}", quoted(value));
        }
    }
    for key in ["on_poweroff", "on_reboot", "on_watchdog", "on_crash", "on_soft_reset"] {
        let action = json[key].as_str().unwrap_or("destroy").replace('_', "-");
        let _ = writeln!(text, "{key} = {}", quoted(&action));
    }
    Some(text)
}

/// A string in configuration file syntax.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_ascii_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    const UUID: &str = "11111111-2222-4333-8444-555555555555";

    #[test]
    fn what_libxl_keeps_becomes_a_configuration() {
        let json = r#"{"c_info": {"type": "pv", "name": "web"},
            "b_info": {"max_vcpus": 2, "target_memkb": 131072, "kernel": "/boot/vmlinuz",
                "ramdisk": "/boot/initrd", "cmdline": "root=/dev/xvda say=\"a \\ b\"", "type.pv": {}},
            "disks": [], "on_reboot": "restart", "on_crash": "rename_restart"}"#;
        let text = configuration(&serde_json::from_str(json).unwrap()).unwrap();
        expect![[r#"
            name = 'adopted'
            type = "pv"
            kernel = "/boot/vmlinuz"
            memory = 128
            ramdisk = "/boot/initrd"
            cmdline = "root=/dev/xvda say=\"a \\ b\""
            on_poweroff = "destroy"
            on_reboot = "restart"
            on_watchdog = "destroy"
            on_crash = "rename-restart"
            on_soft_reset = "destroy"
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn without_a_kernel_there_is_no_configuration() {
        for build in [r#"{"bootloader": "pygrub"}"#, r#"{"kernel": "boot/vmlinuz"}"#] {
            let json = format!(r#"{{"c_info": {{"type": "pv"}}, "b_info": {build}}}"#);
            assert_eq!(configuration(&serde_json::from_str(&json).unwrap()), None);
        }
    }

    #[test]
    fn only_the_domains_own_files_are_its() {
        let folder = std::env::temp_dir().join(format!("xy-kept-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: String, text: &str| std::fs::write(folder.join(name), text).unwrap();
        let json = "{\"c_info\": {\"type\": \"pvh\"}, \"b_info\": {\"kernel\": \"/k\"}}\0";
        file(format!("userdata-d.7.{UUID}.libxl-json"), json);
        file(format!("userdata-d.7.{UUID}.libvirt-xml"), "<domain/>");
        file(format!("userdata-d.17.{UUID}.libxl-json"), "{}");
        file("userdata-d.7.other.libxl-json".to_owned(), "{}");
        let kept = Kept::of(&folder, 7, UUID);
        assert!(kept.is_libvirts && kept.files.len() == 1, "{kept:?}");
        assert!(kept.config.as_ref().is_some_and(|(_, text)| text.contains("kernel = \"/k\"")));
        kept.forget().unwrap();
        kept.forget().unwrap();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 3);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
