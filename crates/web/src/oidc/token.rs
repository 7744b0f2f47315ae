//! A provider's tokens (JWS, compact) and keys (JWK): RS256 and ES256, and nothing else.
//!
//! By ring, which TLS uses as well. `openidconnect` would bring 124 crates more, of which some are older releases of those that
//! are there.

use base64ct::{Base64UrlUnpadded, Encoding as _};
use gate::Claims;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;

/// Of a token.
const TOKEN_BYTES_MAX: usize = 64 << 10;
/// Of a provider.
const KEYS_MAX: usize = 64;

/// The algorithms that are taken, whatever a token or a key says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Algorithm {
    Rs256,
    Es256,
}

impl Algorithm {
    fn of(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            _ => None,
        }
    }
}

#[derive(Debug)]
enum Public {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
}

/// A key of a provider.
#[derive(Debug)]
pub(super) struct Key {
    id: Option<String>,
    public: Public,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    r#use: Option<String>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

#[derive(Deserialize)]
struct Jwks {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    #[serde(default)]
    crit: Option<serde_json::Value>,
}

/// The keys of a document that we can use.
pub(super) fn keys_of(json: &[u8]) -> Result<Vec<Key>, String> {
    let all: Jwks = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let keys = all.keys.into_iter().filter_map(|it| serde_json::from_value(it).ok());
    Ok(keys.filter_map(key_of).take(KEYS_MAX).collect())
}

fn key_of(jwk: Jwk) -> Option<Key> {
    let bytes = |it: Option<String>| Base64UrlUnpadded::decode_vec(&it?).ok();
    if jwk.r#use.is_some_and(|it| it != "sig") {
        return None;
    }
    let (public, algorithm) = match (&*jwk.kty, jwk.crv.as_deref()) {
        ("RSA", _) => (Public::Rsa { n: bytes(jwk.n)?, e: bytes(jwk.e)? }, Algorithm::Rs256),
        ("EC", Some("P-256")) => {
            let point = [&[4][..], &bytes(jwk.x)?, &bytes(jwk.y)?].concat();
            (Public::P256(point), Algorithm::Es256)
        }
        _ => return None,
    };
    let is_right = jwk.alg.is_none_or(|it| Algorithm::of(&it) == Some(algorithm));
    is_right.then_some(Key { id: jwk.kid, public })
}

impl Key {
    fn verify(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        match (&self.public, algorithm) {
            (Public::Rsa { n, e }, Algorithm::Rs256) => RsaPublicKeyComponents { n, e }
                .verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
                .is_ok(),
            (Public::P256(point), Algorithm::Es256) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
                    .verify(message, signature)
                    .is_ok()
            }
            _ => false,
        }
    }
}

/// Why a token says nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum TokenError {
    #[error("the token is none")]
    Malformed,
    #[error("the token is signed by an algorithm that is not taken")]
    Algorithm,
    /// There may be new ones.
    #[error("the token is signed by no key of the provider")]
    NoKey,
    #[error("the token's signature is wrong")]
    Signature,
}

/// What a token says that one of these keys has signed.
pub(super) fn claims_of(token: &str, keys: &[Key]) -> Result<Claims, TokenError> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(TokenError::Malformed);
    }
    let decode =
        |text: &str| Base64UrlUnpadded::decode_vec(text).map_err(|_| TokenError::Malformed);
    let (message, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
    let (head, body) = message.split_once('.').ok_or(TokenError::Malformed)?;
    let header: Header =
        serde_json::from_slice(&decode(head)?).map_err(|_| TokenError::Malformed)?;
    let algorithm = Algorithm::of(&header.alg).ok_or(TokenError::Algorithm)?;
    if header.crit.is_some() {
        return Err(TokenError::Algorithm);
    }
    let signature = decode(signature)?;
    let is_named = |key: &&Key| header.kid.is_none() || key.id == header.kid;
    let mut named = keys.iter().filter(is_named).peekable();
    if named.peek().is_none() {
        return Err(TokenError::NoKey);
    }
    if !named.any(|key| key.verify(algorithm, message.as_bytes(), &signature)) {
        return Err(TokenError::Signature);
    }
    serde_json::from_slice(&decode(body)?).map_err(|_| TokenError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by openssl.
    const N: &str = "xKMtmKmzyblB9XOVbth-GTHbH51ypx0CI5ife9sWRUWkM2auOPa08jSvRl4WrAp4XSJlez3y_H6t_r8UxP6wnUrYcfmtbdG3J8UHO1-WhxPJS1WKRO8ojuAxVkESo3K-jwtVnp86hiAxW1UidOihXyQvOSB5Gm7BRkTDEAh3UdUHYXlDOHLFozszIwzQWtDFAWZTyqHtdJbECKXZnQ2_tIq1bJ5mIR6QxfwX-lB0xjTwP_Ewa5HnjluDv6VUzDlnSehmMx5qvbhn8rOeBvjjzsfyyIGcNhSgw3UklEw32nf427rYGPjaedb3JWlznTZ7b_YxDegTxwia6YoeNjcnxQ";
    const HEAD: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6InIifQ";
    const BODY: &str = "eyJpc3MiOiJodHRwczovL2lkIiwic3ViIjoiYW5uIiwiYXVkIjoieHlsZW0iLCJleHAiOjIwMDAsImlhdCI6MTAwMCwibm9uY2UiOiJuIn0";
    const SIGNATURE: &str = "IXBr0EHPhHoC61zP3k0Ol-ejqG6A518ohCPzPSbVF9RpHkTwia_g-O0c-1LAevaPIqBcaEyxTgrU99i57KUUQLJM_Dv4u40G5kK9PTBm0rTl9zNf8TQLk5GMMYi1g80FgJUY2fEuE9YcNgIldVn3270YSwskbEgpWumYccqglPsQwaMNTIAjz3aXCr7u57Q22dpvefbnMh8iEitHYAbr6p0QT-ilWE6Fx18EtIEIrSL32cvS_29XRSAdbxJAFSCgRg9T2yXuuq_DbtXN4RYilt6vM1Dfxb9gIY6j4cKDhqxfgxGZz2TSWGEbIAHKu2kY91BY7foKhUtPvFsyQrNBJA";

    fn keys(of: &str) -> Vec<Key> {
        let json = format!(
            r#"{{"keys":[{{"kty":"oct","k":""}},{{"kty":"RSA","n":"{N}","e":"AQAB"{of}}}]}}"#
        );
        keys_of(json.as_bytes()).unwrap()
    }

    fn base64(text: &str) -> String {
        Base64UrlUnpadded::encode_string(text.as_bytes())
    }

    #[test]
    fn a_token_is_taken_as_it_was_signed() {
        let named = keys(r#","kid":"r","use":"sig","alg":"RS256""#);
        let token = format!("{HEAD}.{BODY}.{SIGNATURE}");
        assert_eq!(claims_of(&token, &named).unwrap().sub, "ann");
        let said = |token: &str| claims_of(token, &named).unwrap_err();
        let none = base64(r#"{"alg":"none"}"#);
        // The key is no secret.
        let hmac = base64(r#"{"alg":"HS256","kid":"r"}"#);
        let crit = base64(r#"{"alg":"RS256","kid":"r","crit":["b64"]}"#);
        let other = BODY.replace("eyJpc3Mi", "eyJpc3Ni");
        for (token, expected) in [
            (format!("{none}.{BODY}."), TokenError::Algorithm),
            (format!("{hmac}.{BODY}.{SIGNATURE}"), TokenError::Algorithm),
            (format!("{crit}.{BODY}.{SIGNATURE}"), TokenError::Algorithm),
            (format!("{HEAD}.{BODY}."), TokenError::Signature),
            (format!("{HEAD}.{other}.{SIGNATURE}"), TokenError::Signature),
            (
                format!("{}.{BODY}.{SIGNATURE}", base64(r#"{"alg":"ES256","kid":"r"}"#)),
                TokenError::Signature,
            ),
            (
                format!("{}.{BODY}.{SIGNATURE}", base64(r#"{"alg":"RS256","kid":"s"}"#)),
                TokenError::NoKey,
            ),
            (format!("{HEAD}.{BODY}"), TokenError::Malformed),
            (String::new(), TokenError::Malformed),
            ("a".repeat(TOKEN_BYTES_MAX + 1), TokenError::Malformed),
        ] {
            assert_eq!(said(&token), expected, "{token}");
        }
        for not in [r#","use":"enc""#, r#","alg":"RS512""#] {
            assert!(keys(not).is_empty(), "{not}");
        }
    }
}
