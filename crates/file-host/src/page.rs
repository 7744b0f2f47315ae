//! [`Page`]: a mapped ring page for the ring code.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use xen_linux::SharedPage;
use xenstore::ring::RingPage;

/// A ring page in a file.
#[derive(Debug)]
pub struct Page(SharedPage);

impl Page {
    pub(crate) fn map(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let page = SharedPage::of_file(&file)
            .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
        Ok(Self(page))
    }
}

impl RingPage for Page {
    fn load_u32(&self, offset: usize) -> u32 {
        self.0.load_u32(offset)
    }

    fn store_u32(&self, offset: usize, value: u32) {
        self.0.store_u32(offset, value);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        self.0.read(offset, into);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.write(offset, bytes);
    }
}
