//! Images that VMs are made from: read-only VDIs with a name, and where they came from.
//!
//! An image `debian` of the SR `fast` is the VDI `fast:image-debian`, and a file `debian.json` in the folder of images. The
//! file is written when the VDI is whole and read-only, and removed after the VDI: a VDI without a file is what an import
//! left that was interrupted.

use serde::{Deserialize, Serialize};

use crate::error::Naming as _;
use crate::kind::Place;
use crate::name;
use crate::system::text_if_there;
use crate::{Repositories, StorageError, VdiName};

type Result<T> = std::result::Result<T, StorageError>;

const FOLDER: &str = "/var/lib/xylem/images";
/// Begins the names of images' VDIs.
const PREFIX: &str = "image-";

/// An image.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Image {
    pub name: String,
    pub sr: String,
    /// Of the disk.
    pub bytes: u64,
    /// Of the file that it came from.
    pub format: String,
    /// A path or URL.
    pub origin: String,
    /// Of that file: `sha256:` and its digits.
    pub checksum: String,
}

impl Image {
    /// Its VDI.
    ///
    /// # Errors
    /// Its name, or that of its SR, is not valid.
    pub fn vdi(&self) -> Result<VdiName> {
        let valid = VdiName::new(&self.sr, &self.name)
            .and_then(|_| VdiName::new(&self.sr, &format!("{PREFIX}{}", self.name)));
        valid.map_err(|error| match name::check_sr(&self.sr) {
            Err(_) => error,
            Ok(()) => StorageError::refused(format!(
                "{:?} cannot name an image: expected up to {} of A-Z a-z 0-9 . _ -, a letter or digit first",
                self.name,
                name::VDI_BYTES_MAX - PREFIX.len()
            )),
        })
    }

    fn path(&self) -> String {
        format!("{FOLDER}/{}.json", self.name)
    }
}

impl Repositories<'_> {
    /// All images, by name.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn images(&mut self) -> Result<Vec<Image>> {
        let names = self.system.list(FOLDER).of(FOLDER)?;
        let names = names.iter().filter_map(|file| file.strip_suffix(".json"));
        names.filter(|name| name::is_vdi(name)).map(|name| self.image(name)).collect()
    }

    /// The image of this name.
    ///
    /// # Errors
    /// [`StorageError::Missing`] if there is none.
    pub fn image(&mut self, name: &str) -> Result<Image> {
        let wanted = Image { name: name.to_owned(), ..Image::default() };
        let missing = || {
            StorageError::Missing(format!("{name}: no such image; `xy image list` shows them all"))
        };
        if !name::is_vdi(name) {
            return Err(missing());
        }
        let path = wanted.path();
        let text = text_if_there(self.system, &path).of(&path)?.ok_or_else(missing)?;
        serde_json::from_str(&text)
            .map_err(|error| StorageError::refused(format!("{path} cannot be read: {error}")))
    }

    /// Makes a VDI that has been filled an image.
    ///
    /// # Errors
    /// There is an image of this name, or no such VDI, or it is in use.
    pub fn add_image(&mut self, image: &Image) -> Result<()> {
        let vdi = image.vdi()?;
        let _adding = self.lock("image", &image.name)?;
        if let Ok(other) = self.image(&image.name) {
            return Err(StorageError::refused(format!(
                "{}: there is an image of this name, in {}",
                image.name, other.sr
            )));
        }
        self.seal_vdi(&vdi)?;
        let text = serde_json::to_string(image).expect("strings always serialise");
        let path = image.path();
        self.system.write(&path, format!("{text}\n").as_bytes()).of(path)
    }

    /// Destroys an image.
    ///
    /// # Errors
    /// Disks that were made from it share its data, or it is in use.
    pub fn remove_image(&mut self, name: &str) -> Result<()> {
        let _removing = self.lock("image", name)?;
        let image = self.image(name)?;
        match self.destroy_vdi(&image.vdi()?) {
            // An earlier removal was interrupted, or it was destroyed by hand.
            Err(StorageError::Missing(_)) if self.get(&image.sr).is_ok() => {}
            other => other?,
        }
        let path = image.path();
        self.system.remove(&path).of(path)
    }

    /// Makes a VDI read-only, if its kind knows such; clones of it can share its data then.
    fn seal_vdi(&mut self, name: &VdiName) -> Result<()> {
        let _changing = self.lock("sr", name.sr())?;
        let (repository, vdi) = self.find(name)?;
        let _vdi = self.lock("vdi", name)?;
        if let Some(owner) = self.attached(name)?.uses.0.keys().next() {
            return Err(StorageError::InUse(format!("{name}: is in use by {owner}")));
        }
        let mut place = Place { system: self.system, sr: &repository };
        repository.kind.driver().seal_vdi(&mut place, &vdi)
    }
}
