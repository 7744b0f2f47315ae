//! Definitions of VMs as files, and whether those that start with the host were started.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use toolstack::{Boot, DefinitionFile};

/// What ends a file's name while it is being written.
const UNFINISHED: &str = ".new";

/// Where they lie. The folder outlives the host, the marker does not.
#[derive(Clone, Debug)]
pub(crate) struct Definitions {
    pub(crate) folder: PathBuf,
    pub(crate) marker: PathBuf,
}

impl Definitions {
    /// All that were written to their end.
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
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            // Whoever wrote it was killed before anybody was told that it was written.
            if name.ends_with(UNFINISHED) {
                continue;
            }
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            files.push(DefinitionFile { name: name.to_owned(), text });
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

    /// A file is whole or not there, whenever the power fails.
    pub(crate) fn write(&self, name: &str, text: &str) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let path = self.folder.join(name);
        let unfinished = self.folder.join(format!("{name}{UNFINISHED}"));
        let mut options = fs::OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, &path)?;
        sync_folder(&self.folder)
    }

    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.folder.join(name)) {
            Ok(()) => sync_folder(&self.folder),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
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
        let found: Vec<_> =
            definitions.load().unwrap().into_iter().map(|it| (it.name, it.text)).collect();
        let expected = [("a", "one"), ("b", "three")];
        assert_eq!(found, expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
        definitions.remove("a").unwrap();
        definitions.remove("a").unwrap();
        assert_eq!(definitions.load().unwrap().len(), 1);
        assert_eq!(definitions.boot(), Boot::First);
        fs::create_dir_all(folder.join("marker")).unwrap();
        definitions.finish_boot().unwrap();
        assert_eq!(definitions.boot(), Boot::Again);
        fs::remove_dir_all(folder).unwrap();
    }
}
