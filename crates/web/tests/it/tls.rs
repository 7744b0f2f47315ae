//! TLS, with a certificate of its own making.

use std::sync::Arc;

use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use crate::served::{Web, said, shared_host, token};

/// An authority of ours, and a certificate that it has signed for a client.
fn authority() -> (String, ClientCert, Vec<u8>) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).unwrap();
    let issuer = rcgen::Issuer::new(params, key);
    let client_key = rcgen::KeyPair::generate().unwrap();
    let mut client = rcgen::CertificateParams::new(Vec::new()).unwrap();
    client.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let client = client.signed_by(&client_key, &issuer).unwrap();
    let chain = [Certificate::from_der(client.der()).to_owned()];
    let key = PrivateKey::from_pem(client_key.serialize_pem().as_bytes()).unwrap();
    (ca.pem(), ClientCert::new_with_certs(&chain, key), client.pem().into_bytes())
}

#[test]
fn clients_come_by_tls_with_a_token_or_a_certificate() {
    let (ca, client, client_pem) = authority();
    let folder = crate::served::Folder::new();
    std::fs::write(folder.path("ca"), ca).unwrap();
    std::fs::write(folder.path("client"), client_pem).unwrap();
    let (ca, client_file) = (folder.path("ca"), folder.path("client"));
    let options = [
        "--make-certificate",
        "--certificate",
        "FOLDER/certificate",
        "--key",
        "FOLDER/key",
        "--client-ca",
        ca.to_str().unwrap(),
    ];
    let web = Web::before(shared_host(), &options);
    let added = std::process::Command::new(env!("CARGO_BIN_EXE_xylem-web"))
        .args(["client", "add-certificate", "ci", "--role", "viewer", "--certificate"])
        .arg(&client_file)
        .arg("--clients")
        .arg(web.folder.path("clients"))
        .status()
        .unwrap();
    assert!(added.success());
    let pem = std::fs::read(web.folder.path("certificate")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(web.folder.path("key")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    let agent = |certificate: Option<ClientCert>| -> Agent {
        let root = Certificate::from_pem(&pem).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(provider)
            .root_certs(RootCerts::from(vec![root]))
            .client_cert(certificate)
            .build();
        Agent::config_builder().http_status_as_error(false).tls_config(tls).build().into()
    };
    let url = format!("https://localhost:{}", web.address().rsplit_once(':').unwrap().1);
    let session = |agent: &Agent, token: Option<String>| {
        let mut request = agent.get(format!("{url}/v1/session"));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        said(request.call().unwrap())
    };
    let plain = agent(None);
    assert_eq!(session(&plain, None).0, 401);
    assert_eq!(session(&plain, Some(token(api::Role::Admin))).1["role"], "admin");
    let mut by_certificate = (0, serde_json::Value::Null);
    for _ in 0..50 {
        by_certificate = session(&agent(Some(client.clone())), None);
        if by_certificate.0 == 200 {
            break;
        }
        // The file of clients is looked at each second.
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert_eq!(by_certificate.1["who"], "ci");
    // Cookies are for TLS only.
    let body = format!(r#"{{"token":"{}"}}"#, token(api::Role::Viewer));
    let response = plain.post(format!("{url}/v1/session")).send(body).unwrap();
    assert!(response.headers()["set-cookie"].to_str().unwrap().ends_with("; Secure"));
    // Another authority's certificate is none.
    let (_, stranger, _) = authority();
    let request = agent(Some(stranger)).get(format!("{url}/v1/session")).call();
    assert!(request.is_err(), "{request:?}");
}
