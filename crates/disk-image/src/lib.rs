//! Images of disks as others publish them, and what a cloud image wants to find on its first boot.
//!
//! A reader of raw and qcow2 images, compressed or not ([`Image`]), and a writer of the small volume that cloud-init reads
//! ([`seed`]). Nothing here opens a file: an image that names other files finds no way to them.

pub mod archive;
mod gzip;
mod image;
mod qcow2;
pub mod seed;
mod xz;

pub use image::{Format, Image, Packing};

use std::io;

/// An image's file.
pub trait ReadAt {
    /// Fills `into` from this offset.
    ///
    /// # Errors
    /// The file ends before, or cannot be read.
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<()>;

    /// The file's length.
    ///
    /// # Errors
    /// It cannot be found out.
    fn bytes(&self) -> io::Result<u64>;
}

impl ReadAt for &[u8] {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        let start = usize::try_from(at).ok();
        let end = start.and_then(|start| start.checked_add(into.len()));
        let found = start.zip(end).and_then(|(start, end)| self.get(start..end));
        into.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
}

/// Receives an image's data, piece by piece, at growing offsets; what lies between is zeros.
pub type Sink<'a> = &'a mut dyn FnMut(u64, &[u8]) -> io::Result<()>;

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// It says that its content is not all its own, or what it is cannot be read.
    #[error("{0}")]
    Refused(String),
    #[error("the image is damaged: {0}")]
    Damaged(String),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl ImageError {
    fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(what.into())
    }
}

/// `what` in a file that ends too early is damaged; other errors are the file's.
fn cut_off(what: &'static str) -> impl Fn(io::Error) -> ImageError {
    move |error| match error.kind() {
        io::ErrorKind::UnexpectedEof => ImageError::damaged(format!("{what} is not all there")),
        _ => error.into(),
    }
}
