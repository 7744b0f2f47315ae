//! This host's key.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::rand::{SecureRandom as _, SystemRandom};
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use crate::fingerprint::Fingerprint;
use crate::{files, handshake};

const BYTES_MAX: u64 = 16 << 10;
const SEED_BYTES: usize = 32;
/// What comes before the seed of an Ed25519 key in PKCS #8, RFC 8410.
const PKCS8_START: [u8; 16] =
    [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// This host's key pair, an Ed25519 key.
#[derive(Clone)]
pub struct Identity {
    pub(crate) key: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").field(&self.fingerprint).finish()
    }
}

/// Why this host has no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("cannot make {path}: {why}", path = .0.display(), why = .1)]
    Make(PathBuf, io::Error),
    #[error("cannot read {path}: {why}", path = .0.display(), why = .1)]
    Read(PathBuf, io::Error),
    #[error("{path} may be read by others (mode {mode:o}): if nobody did, 'chmod 600' it, else remove it, and tell the \
             peers of the new key", path = .0.display(), mode = .1)]
    Open(PathBuf, u32),
    #[error("{path} belongs to the user {owner}, not to this daemon's", path = .0.display(), owner = .1)]
    Foreign(PathBuf, u32),
    #[error("{path} has no Ed25519 key in PEM ({why}): remove it, and tell the peers of the new key",
            path = .0.display(), why = .1)]
    Unusable(PathBuf, String),
}

impl Identity {
    /// The key in the file, which is made if there is none.
    ///
    /// # Errors
    /// [`KeyError`], which names the file.
    pub fn load_or_make(path: &Path) -> Result<Self, KeyError> {
        let make = |error| KeyError::Make(path.to_owned(), error);
        files::make_folder(path).map_err(make)?;
        // Of several at once one makes the key, and all have it.
        let _lock = files::lock(path).map_err(make)?;
        let missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        match Self::load(path) {
            Err(KeyError::Read(_, error)) if missing(&error) => {}
            loaded => return loaded,
        }
        let text = fresh().map_err(make)?;
        files::replace(path, &text).map_err(make)?;
        Self::load(path)
    }

    fn load(path: &Path) -> Result<Self, KeyError> {
        let read = |error| KeyError::Read(path.to_owned(), error);
        let file = files::open(path).map_err(read)?;
        let metadata = file.metadata().map_err(read)?;
        let mode = metadata.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Open(path.to_owned(), mode));
        }
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(KeyError::Foreign(path.to_owned(), metadata.uid()));
        }
        let text = files::read(file, BYTES_MAX).map_err(read)?;
        Self::from_pem(&text).map_err(|why| KeyError::Unusable(path.to_owned(), why))
    }

    fn from_pem(text: &str) -> Result<Self, String> {
        let pkcs8 = PrivatePkcs8KeyDer::from_pem_slice(text.as_bytes())
            .map_err(|error| error.to_string())?;
        let key = any_eddsa_type(&pkcs8).map_err(|error| error.to_string())?;
        let public = key.public_key().ok_or("it has no public key")?;
        let fingerprint = Fingerprint::of(&public);
        // rustls passes a bare public key where a certificate would be.
        let shown = CertificateDer::from(public.to_vec());
        handshake::check_public_key(&shown).map_err(|error| error.to_string())?;
        Ok(Self { key: Arc::new(CertifiedKey::new(vec![shown], key)), fingerprint })
    }

    /// By which other hosts know this one.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

/// A new key, as `openssl genpkey -algorithm ed25519` would write it.
fn fresh() -> io::Result<String> {
    let mut der = [0; PKCS8_START.len() + SEED_BYTES];
    let (start, seed) = der.split_at_mut(PKCS8_START.len());
    start.copy_from_slice(&PKCS8_START);
    SystemRandom::new().fill(seed).map_err(|_| io::Error::other("no random numbers"))?;
    let key = base64(&der);
    Ok(format!("-----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----\n"))
}

/// Of a multiple of three bytes.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = |three: &[u8]| {
        let number = three.iter().fold(0_usize, |number, byte| number << 8 | usize::from(*byte));
        [18, 12, 6, 0].map(|shift| char::from(ALPHABET[number >> shift & 63]))
    };
    bytes.chunks_exact(3).flat_map(digits).collect()
}
