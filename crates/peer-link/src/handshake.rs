//! TLS with bare keys: what each end shows and how it checks the other's.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::ring::{cipher_suite, default_provider, kx_group};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    PeerMisbehaved, ServerConfig, SignatureScheme,
};

use crate::fingerprint::Fingerprint;
use crate::identity::Identity;
use crate::peers::Peers;

/// What comes before the 32 bytes of an Ed25519 key in a `SubjectPublicKeyInfo`, RFC 8410.
const PUBLIC_KEY_START: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];
const PUBLIC_KEY_BYTES: usize = PUBLIC_KEY_START.len() + 32;

/// Only an Ed25519 key is one.
pub(crate) fn check_public_key(shown: &CertificateDer<'_>) -> Result<(), Error> {
    if shown.len() == PUBLIC_KEY_BYTES && shown.starts_with(&PUBLIC_KEY_START) {
        Ok(())
    } else {
        Err(CertificateError::BadEncoding.into())
    }
}

/// Which keys are accepted.
#[derive(Debug)]
pub(crate) enum Accepts {
    /// That of one host, which is being called.
    One(Fingerprint),
    /// That of any peer: the caller is yet to say who it is.
    Any(Peers),
}

/// Checks the other end's key, and remembers it.
#[derive(Debug)]
pub(crate) struct Check {
    accepts: Accepts,
    shown: Mutex<Option<Fingerprint>>,
    provider: Arc<CryptoProvider>,
}

impl Check {
    pub(crate) fn new(accepts: Accepts) -> Arc<Self> {
        Arc::new(Self { accepts, shown: Mutex::new(None), provider: Arc::new(provider()) })
    }

    /// The key that the other end has shown, be it accepted or not.
    pub(crate) fn shown(&self) -> Option<Fingerprint> {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, shown: &CertificateDer<'_>, more: &[CertificateDer<'_>]) -> Result<(), Error> {
        check_public_key(shown)?;
        if !more.is_empty() {
            return Err(CertificateError::BadEncoding.into());
        }
        let key = Fingerprint::of(shown);
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = Some(key);
        let is_accepted = match &self.accepts {
            Accepts::One(expected) => *expected == key,
            Accepts::Any(peers) => peers.by_key(key).is_some(),
        };
        if is_accepted {
            Ok(())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    /// The other end has the private key, too.
    fn check_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
    }
}

/// TLS 1.2 is not offered.
fn never() -> Error {
    PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into()
}

/// What is the same for both ends: an Ed25519 key, with its signature by TLS 1.3.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _shown: &CertificateDer<'_>,
            _signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(never())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            shown: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.check_signature(message, shown, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for Check {
    signatures!();

    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        more: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(shown, more).map(|()| ServerCertVerified::assertion())
    }
}

impl ClientCertVerifier for Check {
    signatures!();

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        more: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(shown, more).map(|()| ClientCertVerified::assertion())
    }
}

/// The caller's order decides: what its processor is fast at comes first.
fn provider() -> CryptoProvider {
    let aes = cipher_suite::TLS13_AES_128_GCM_SHA256;
    let chacha = cipher_suite::TLS13_CHACHA20_POLY1305_SHA256;
    let cipher_suites = if has_aes() { vec![aes, chacha] } else { vec![chacha, aes] };
    CryptoProvider { cipher_suites, kx_groups: vec![kx_group::X25519], ..default_provider() }
}

#[cfg(target_arch = "x86_64")]
fn has_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_aes() -> bool {
    false
}

/// For calls.
pub(crate) fn client(identity: &Identity, check: &Arc<Check>) -> Result<ClientConfig, Error> {
    let check = Arc::clone(check);
    let builder = ClientConfig::builder_with_provider(Arc::clone(&check.provider));
    let key = AlwaysResolvesClientRawPublicKeys::new(Arc::clone(&identity.key));
    let mut config = builder
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(check)
        .with_client_cert_resolver(Arc::new(key));
    // Each connection checks the keys anew.
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(config)
}

/// For being called.
pub(crate) fn server(identity: &Identity, check: &Arc<Check>) -> Result<ServerConfig, Error> {
    let check = Arc::clone(check);
    let builder = ServerConfig::builder_with_provider(Arc::clone(&check.provider));
    let key = AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&identity.key));
    let mut config = builder
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(check)
        .with_cert_resolver(Arc::new(key));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}
