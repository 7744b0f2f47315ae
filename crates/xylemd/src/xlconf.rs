//! `xl.conf`. Like xl, which reads it for each command, a change takes effect with the next request; until the file
//! changes it is not read again.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use toolstack::xlcfg::{HostDefaults, read_host};

use crate::images::Stamp;
use crate::log;

/// Where xl has it.
pub(crate) const PATH: &str = "/etc/xen/xl.conf";

/// Far more than any such file has.
const BYTES_MAX: u64 = 1 << 20;

type Reading = Result<Arc<HostDefaults>, String>;

#[derive(Debug)]
pub(crate) struct XlConf {
    path: PathBuf,
    /// Without a stamp if there was no file.
    last: Mutex<Option<(Option<Stamp>, Reading)>>,
}

impl XlConf {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), last: Mutex::default() }
    }

    /// What the file says now. What was taken of it, and what is wrong with it, is logged once.
    pub(crate) fn defaults(&self) -> Reading {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let metadata = std::fs::metadata(&self.path);
        let stamp = metadata.as_ref().ok().map(Stamp::of);
        if let Some((known, reading)) = &*last
            && *known == stamp
        {
            return reading.clone();
        }
        let reading = match metadata {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Arc::default()),
            _ => self.read(),
        };
        if let Err(problem) = &reading {
            log(format_args!("{problem}; until it is corrected, no VM can be created"));
        }
        *last = Some((stamp, reading.clone()));
        reading
    }

    fn read(&self) -> Reading {
        let path = self.path.display();
        let mut text = String::new();
        let read = std::fs::File::open(&self.path)
            .and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
        if let Err(error) = read {
            // As for xl, whoever cannot read it goes on without.
            log(format_args!("{path}: ignored: {error}"));
            return Ok(Arc::default());
        }
        let reading = read_host(&self.path.to_string_lossy(), &text);
        for warning in &reading.warnings {
            log(warning);
        }
        match reading.faults.first() {
            Some(fault) => Err(fault.to_string()),
            None => {
                let taken = reading.defaults.to_string();
                let taken = if taken.is_empty() { "no key that matters here" } else { &taken };
                log(format_args!("{path}: {taken}"));
                Ok(Arc::new(reading.defaults))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_the_file_takes_effect_at_once() {
        let path = std::env::temp_dir().join(format!("xylemd-xl-conf-{}", std::process::id()));
        let conf = XlConf::new(&path);
        let bridge = || conf.defaults().map(|it| it.bridge().unwrap().to_owned());
        assert_eq!(bridge().unwrap(), "xenbr0");
        std::fs::write(&path, "vif.default.bridge='br1'\n").unwrap();
        assert_eq!(bridge().unwrap(), "br1");
        std::fs::write(&path, "vif.default.bridge=\n").unwrap();
        let problem = bridge().unwrap_err();
        assert!(problem.starts_with(&format!("{}:1: ", path.display())), "{problem}");
        std::fs::write(&path, "# nothing any more\n").unwrap();
        assert_eq!(bridge().unwrap(), "xenbr0");
        std::fs::remove_file(&path).unwrap();
    }
}
