//! libxl's files of a domain. Source: xen `tools/libs/light/libxl_internal.c`.

use std::path::{Path, PathBuf};

/// The files of a domain.
#[derive(Debug, Default)]
pub(super) struct Kept {
    files: Vec<PathBuf>,
    /// The name and the text of the file with the domain's configuration.
    pub(super) json: Option<(String, String)>,
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
                    let json =
                        json.and_then(|bytes| String::from_utf8(trimmed(&bytes).to_vec()).ok());
                    kept.json = json.map(|json| (path.display().to_string(), json));
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

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "11111111-2222-4333-8444-555555555555";

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
        assert!(kept.json.as_ref().is_some_and(|(_, json)| json.ends_with("}}")));
        kept.forget().unwrap();
        kept.forget().unwrap();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 3);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
