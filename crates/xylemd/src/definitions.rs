//! Files of VM definitions, and the marker that autostart VMs were started.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::OFlags;
use toolstack::{Boot, DefinitionFile};

/// Largest definition; usual ones have a few kilobytes.
const BYTES_MAX: u64 = 1 << 20;
/// Suffix of a file that is being written.
const UNFINISHED: &str = ".new";

/// Their paths. The folder survives a reboot, the marker does not.
#[derive(Clone, Debug)]
pub(crate) struct Definitions {
    pub(crate) folder: PathBuf,
    pub(crate) marker: PathBuf,
}

impl Definitions {
    /// All complete definitions. Anything that is not a text file is reported and ignored.
    pub(crate) fn load(&self) -> Result<Vec<DefinitionFile>> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("cannot read {}", self.folder.display()));
            }
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot read {}", self.folder.display()))?;
            let name = entry.file_name().to_string_lossy().escape_debug().to_string();
            // The writer was killed before the write was acknowledged.
            if name.ends_with(UNFINISHED) {
                let _stays = fs::remove_file(entry.path());
                continue;
            }
            files.push(DefinitionFile { name, text: read_text(&entry.path()) });
        }
        files.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(files)
    }

    pub(crate) fn boot(&self) -> Boot {
        if self.marker.exists() { Boot::Again } else { Boot::First }
    }

    pub(crate) fn finish_boot(&self) -> io::Result<()> {
        File::create(&self.marker).map(drop)
    }

    /// Atomic, also on a power failure.
    pub(crate) fn write(&self, name: &str, text: &str) -> io::Result<()> {
        let unfinished = self.folder.join(format!("{name}{UNFINISHED}"));
        // What cannot be removed of one that failed is removed by the next daemon.
        storage_host::replace_file(&self.folder.join(name), &unfinished, text.as_bytes())
    }

    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.folder.join(name)) {
            Ok(()) => sync_folder(&self.folder),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A definition's text. Links are not followed, and only regular files are opened, since others
/// could block.
fn read_text(path: &Path) -> Result<String, String> {
    let told = |error: io::Error| format!("cannot read it: {error}");
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(told)?;
    if !file.metadata().map_err(told)?.is_file() {
        return Err("it is no file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(told)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(format!("it is larger than {} KiB", BYTES_MAX / 1024));
    }
    String::from_utf8(bytes).map_err(|_| "it is no text in UTF-8".to_owned())
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn what_was_written_is_found_again_and_what_was_not_is_left_out() {
        let folder = std::env::temp_dir().join(format!("xylemd-vm-{}", std::process::id()));
        let marker = folder.join("marker").join("started");
        let definitions = Definitions { folder: folder.join("vm"), marker };
        assert_eq!(definitions.load().unwrap(), []);
        definitions.write("b", "two").unwrap();
        definitions.write("a", "one").unwrap();
        definitions.write("b", "three").unwrap();
        fs::write(folder.join("vm").join("c.new"), "half").unwrap();
        fs::create_dir(folder.join("vm").join("d")).unwrap();
        definitions.write("d", "in the way of a folder").unwrap_err();
        assert!(!folder.join("vm").join("d.new").exists(), "half a file is left");
        fs::remove_dir(folder.join("vm").join("d")).unwrap();
        let found: Vec<_> =
            definitions.load().unwrap().into_iter().map(|it| (it.name, it.text)).collect();
        let expected = [("a", "one"), ("b", "three")];
        assert_eq!(found, expected.map(|(name, text)| (name.to_owned(), Ok(text.to_owned()))));
        assert!(!folder.join("vm").join("c.new").exists(), "it would be there for ever");
        definitions.remove("a").unwrap();
        definitions.remove("a").unwrap();
        assert_eq!(definitions.load().unwrap().len(), 1);
        assert_eq!(definitions.boot(), Boot::First);
        fs::create_dir_all(folder.join("marker")).unwrap();
        definitions.finish_boot().unwrap();
        assert_eq!(definitions.boot(), Boot::Again);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn strange_things_in_the_folder_are_told_of_and_keep_nobody_from_starting() {
        let folder = std::env::temp_dir().join(format!("xylemd-odd-{}", std::process::id()));
        let definitions = Definitions { folder: folder.clone(), marker: folder.join("no") };
        definitions.write("good", "text").unwrap();
        fs::create_dir(folder.join("folder")).unwrap();
        fs::write(folder.join("latin"), b"name = 'caf\xe9'").unwrap();
        fs::write(folder.join(OsStr::from_bytes(b"bad\xff\nname")), "x").unwrap();
        fs::write(folder.join("large"), "#".repeat((1 << 20) + 1)).unwrap();
        std::os::unix::fs::symlink("good", folder.join("link")).unwrap();
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, folder.join("pipe"), fifo, 0o600.into(), 0).unwrap();
        let found: Vec<_> =
            definitions.load().unwrap().into_iter().map(|it| (it.name, it.text)).collect();
        fs::remove_dir_all(folder).unwrap();
        let told = |name: &str, why: &str| (name.to_owned(), Err(why.to_owned()));
        assert_eq!(
            found,
            [
                ("bad\u{fffd}\\nname".to_owned(), Ok("x".to_owned())),
                told("folder", "it is no file"),
                ("good".to_owned(), Ok("text".to_owned())),
                told("large", "it is larger than 1024 KiB"),
                told("latin", "it is no text in UTF-8"),
                told("link", "cannot read it: Too many levels of symbolic links (os error 40)"),
                told("pipe", "it is no file"),
            ]
        );
    }
}
