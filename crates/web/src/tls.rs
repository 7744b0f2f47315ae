//! TLS: the certificate of this host, and who signs those of clients.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;
use ureq::Agent;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

/// What serves TLS with these files. Clients may show a certificate that is signed by the CA.
pub(crate) fn acceptor(
    certificate: &Path,
    key: &Path,
    client_ca: Option<&Path>,
) -> Result<TlsAcceptor> {
    let chain = certificates(certificate)?;
    let key = PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("{}: no private key in PEM", key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .context("TLS")?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).with_context(|| path.display().to_string())?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .with_context(|| path.display().to_string())?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).context("the certificate and its key")?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The certificates of a file.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(path)
        .and_then(|all| all.collect::<Result<Vec<_>, _>>())
        .with_context(|| format!("cannot read {}", path.display()))?;
    anyhow::ensure!(!found.is_empty(), "{}: no certificate in PEM", path.display());
    Ok(found)
}

/// Where Debian has the certificates of all authorities.
const HOST_CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// For a server to take a connection of ours.
const CONNECT_TIME: Duration = Duration::from_secs(3);

/// What asks another server, whose certificate is signed by this CA, or by one that the host trusts. No answer takes longer than
/// this, and none sends us elsewhere.
pub(crate) fn agent(url: &str, ca: Option<&Path>, answer_time: Duration) -> Result<Agent> {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .timeout_connect(Some(CONNECT_TIME))
        .timeout_global(Some(answer_time))
        .max_redirects(0)
        .tls_config(client(url, ca)?);
    Ok(config.build().into())
}

fn client(url: &str, ca: Option<&Path>) -> Result<TlsConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = TlsConfig::builder().unversioned_rustls_crypto_provider(provider);
    if url.starts_with("https://") {
        let path = ca.unwrap_or_else(|| Path::new(HOST_CERTIFICATES));
        let pem = fs::read(path).with_context(|| path.display().to_string())?;
        let certificates = parse_pem(&pem).filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        });
        tls = tls.root_certs(RootCerts::from(certificates.collect::<Vec<_>>()));
    }
    Ok(tls.build())
}

/// Makes a certificate for these names, signed by itself, unless there is one.
pub(crate) fn make(certificate: &Path, key: &Path, names: Vec<String>) -> Result<()> {
    if certificate.exists() && key.exists() {
        return Ok(());
    }
    let made = rcgen::generate_simple_self_signed(names).context("cannot make a certificate")?;
    write(key, 0o600, made.signing_key.serialize_pem().as_bytes())?;
    write(certificate, 0o644, made.cert.pem().as_bytes())
}

fn write(path: &Path, mode: u32, bytes: &[u8]) -> Result<()> {
    let new = path.with_extension("new");
    let write = || {
        let _left_over = fs::remove_file(&new);
        let mut file = fs::File::options().write(true).create_new(true).mode(mode).open(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
