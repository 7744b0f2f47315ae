//! A provider of OpenID Connect: what it says of itself, and what it gives for a code.
//!
//! It is asked by a few threads of their own, each question with a bound on time and size: one that is down or slow holds up
//! nobody but who logs in there.

mod token;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use base64ct::{Base64, Encoding as _};
use gate::{Begun, Claims, Expected, LogIns, Returned};
use serde::Deserialize;
use tokio::sync::Semaphore;
use ureq::Agent;
use ureq::http::Response;

use crate::shared::{lock, random, unix_s};
use crate::tls;
use token::{Key, TokenError, claims_of, keys_of};

/// Where a browser comes back to.
pub(crate) const RETURN_PATH: &str = "/v1/session/oidc/callback";

const ANSWER_TIME: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 256 << 10;
/// Log-ins that ask the provider at a time.
const TURNS: usize = 4;
/// What a provider says of itself is asked for again after this time.
const KNOWN_FOR: Duration = Duration::from_secs(3600);
/// And after this time if a token is signed by another key, or if it did not answer.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// As it was given.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) issuer: String,
    pub(crate) client: String,
    pub(crate) secret_file: PathBuf,
    /// Which says who it is.
    pub(crate) claim: String,
    /// Signs the provider's certificate, in PEM; the host's own otherwise.
    pub(crate) ca: Option<PathBuf>,
    /// Ours, as browsers know it.
    pub(crate) origin: String,
}

/// Where a provider is asked.
#[derive(Debug, Deserialize)]
struct Discovered {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    #[serde(default)]
    token_endpoint_auth_methods_supported: Vec<String>,
}

#[derive(Debug)]
struct Known {
    places: Discovered,
    keys: Vec<Key>,
    at: Instant,
}

/// What was heard of it last.
#[derive(Debug)]
struct Heard {
    known: Option<Arc<Known>>,
    failure: Option<(String, Instant)>,
}

/// Why nobody was logged in.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum OidcError {
    #[error("too many log-ins are in progress; try again")]
    Busy,
    #[error("the provider does not answer as it should: {0}")]
    Provider(String),
    #[error("{0}")]
    Refused(String),
    #[error("this log-in did not begin in this browser, or not lately")]
    Stale,
}

#[derive(Debug)]
pub(crate) struct Oidc {
    settings: Settings,
    secret: String,
    agent: Agent,
    heard: Mutex<Heard>,
    log_ins: Mutex<LogIns>,
    turns: Arc<Semaphore>,
}

impl Oidc {
    pub(crate) fn new(settings: Settings) -> Result<Self> {
        for (what, url) in [("issuer", &settings.issuer), ("origin", &settings.origin)] {
            ensure!(is_safe(url), "{what} {url:?}: no URL of https, or of http on this host");
        }
        let secret = std::fs::read_to_string(&settings.secret_file)
            .with_context(|| format!("cannot read {}", settings.secret_file.display()))?;
        let secret = secret.trim().to_owned();
        let agent = tls::agent(&settings.issuer, settings.ca.as_deref(), ANSWER_TIME)?;
        Ok(Self {
            settings,
            secret,
            agent,
            heard: Mutex::new(Heard { known: None, failure: None }),
            log_ins: Mutex::default(),
            turns: Arc::new(Semaphore::new(TURNS)),
        })
    }

    /// A log-in begins. Returns where the browser is sent, and what it has to show when it comes back.
    pub(crate) async fn begin(self: &Arc<Self>) -> Result<(String, String), OidcError> {
        let known = self.ask(|it| it.known(KNOWN_FOR)).await?;
        let fresh = || random::<32>().map_err(|error| OidcError::Provider(error.to_string()));
        let random = [fresh()?, fresh()?, fresh()?, fresh()?];
        let Begun { state, nonce, challenge, browser } =
            lock(&self.log_ins).begin(&random, unix_s());
        let to = &known.places.authorization_endpoint;
        let scope = if self.settings.claim == "sub" { "openid" } else { "openid email profile" };
        let query = form(&[
            ("response_type", "code"),
            ("client_id", &self.settings.client),
            ("redirect_uri", &self.return_to()),
            ("scope", scope),
            ("state", &state),
            ("nonce", &nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        let separator = if to.contains('?') { '&' } else { '?' };
        Ok((format!("{to}{separator}{query}"), browser))
    }

    /// A browser has come back. Returns what the provider calls its user.
    pub(crate) async fn end(
        self: &Arc<Self>,
        state: &str,
        browser: &str,
        issuer: Option<&str>,
        code: String,
    ) -> Result<String, OidcError> {
        let refused = |why: &str| OidcError::Refused(why.to_owned());
        let returned = lock(&self.log_ins).take(state, browser, unix_s());
        let returned = returned.ok_or(OidcError::Stale)?;
        // Which of several providers has answered: there is one.
        if issuer.is_some_and(|it| it != self.settings.issuer) {
            return Err(refused("this log-in is of another provider"));
        }
        let Returned { nonce, verifier } = returned;
        let claims = self.ask(move |it| it.redeem(&code, &verifier)).await?;
        let Settings { issuer, client, claim, .. } = &self.settings;
        let expected = Expected { issuer, client, nonce: &nonce };
        claims.check(&expected, unix_s()).map_err(|why| refused(&format!("the token: {why}")))?;
        claims.value(claim).map(str::to_owned).map_err(|why| refused(&format!("the token: {why}")))
    }

    fn return_to(&self) -> String {
        format!("{}{RETURN_PATH}", self.settings.origin.trim_end_matches('/'))
    }

    /// Asks the provider, on a thread that nobody else needs.
    async fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        ask: impl FnOnce(&Self) -> Result<T, OidcError> + Send + 'static,
    ) -> Result<T, OidcError> {
        let turn = Arc::clone(&self.turns).try_acquire_owned().map_err(|_| OidcError::Busy)?;
        let asks = Arc::clone(self);
        let asked = tokio::task::spawn_blocking(move || {
            // Kept by the question if nobody waits for its answer any more.
            let _turn = turn;
            ask(&asks)
        });
        asked.await.unwrap_or_else(|error| Err(OidcError::Provider(error.to_string())))
    }

    /// What it says of itself, not older than this.
    fn known(&self, age_max: Duration) -> Result<Arc<Known>, OidcError> {
        {
            let heard = lock(&self.heard);
            if let Some(known) = heard.known.as_ref().filter(|it| it.at.elapsed() < age_max) {
                return Ok(Arc::clone(known));
            }
            if let Some((why, at)) = &heard.failure
                && at.elapsed() < AGAIN_AFTER
            {
                return Err(OidcError::Provider(why.clone()));
            }
        }
        let found = self.discover();
        let mut heard = lock(&self.heard);
        match found {
            Ok(known) => {
                let known = Arc::new(known);
                *heard = Heard { known: Some(Arc::clone(&known)), failure: None };
                Ok(known)
            }
            Err(why) => {
                heard.failure = Some((why.clone(), Instant::now()));
                Err(OidcError::Provider(why))
            }
        }
    }

    fn discover(&self) -> Result<Known, String> {
        let issuer = &self.settings.issuer;
        let url = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let text = body_of(self.agent.get(&url).call())?;
        let places: Discovered =
            serde_json::from_slice(&text).map_err(|error| format!("{url}: {error}"))?;
        if places.issuer != *issuer {
            return Err(format!("{url} is of the issuer {:?}", places.issuer));
        }
        for url in [&places.authorization_endpoint, &places.token_endpoint, &places.jwks_uri] {
            if !is_safe(url) || (issuer.starts_with("https://") && !url.starts_with("https://")) {
                return Err(format!("{url:?} is no URL of https"));
            }
        }
        let keys = keys_of(&body_of(self.agent.get(&places.jwks_uri).call())?)?;
        Ok(Known { places, keys, at: Instant::now() })
    }

    /// Gets a token for a code; what it says if the provider has signed it.
    fn redeem(&self, code: &str, verifier: &str) -> Result<Claims, OidcError> {
        #[derive(Deserialize)]
        struct Given {
            id_token: String,
        }
        let known = self.known(KNOWN_FOR)?;
        let Settings { client, .. } = &self.settings;
        let return_to = self.return_to();
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &return_to),
            ("code_verifier", verifier),
        ];
        let ways = &known.places.token_endpoint_auth_methods_supported;
        let is = |way: &str| ways.iter().any(|it| it == way);
        let mut request = self.agent.post(&known.places.token_endpoint);
        if is("client_secret_post") && !is("client_secret_basic") {
            fields.extend([("client_id", client.as_str()), ("client_secret", &self.secret)]);
        } else {
            let pair = format!("{}:{}", coded(client), coded(&self.secret));
            let basic = Base64::encode_string(pair.as_bytes());
            request = request.header("authorization", format!("Basic {basic}"));
        }
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let text = body_of(request.send(form(&fields))).map_err(OidcError::Refused)?;
        let given: Given = serde_json::from_slice(&text)
            .map_err(|error| OidcError::Provider(format!("no token: {error}")))?;
        let claims = match claims_of(&given.id_token, &known.keys) {
            // It has made another key since it was asked.
            Err(TokenError::NoKey) => claims_of(&given.id_token, &self.known(AGAIN_AFTER)?.keys),
            other => other,
        };
        claims.map_err(|error| OidcError::Refused(error.to_string()))
    }
}

/// A whole answer, if it is one. What a provider says in an error is not for others to read.
fn body_of(answer: Result<Response<ureq::Body>, ureq::Error>) -> Result<Vec<u8>, String> {
    let mut answer = answer.map_err(|error| error.to_string())?;
    if answer.status() != 200 {
        return Err(format!("it answers with {}", answer.status()));
    }
    let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX);
    body.read_to_vec().map_err(|error| error.to_string())
}

/// Nobody between reads what is sent there.
fn is_safe(url: &str) -> bool {
    let of_host = |scheme: &str| {
        let rest = url.strip_prefix(scheme)?;
        let host = rest.split(['/', '?']).next()?;
        let is_plain = url.bytes().all(|it| it.is_ascii_graphic()) && !url.contains(['#', '@']);
        (!host.is_empty() && is_plain).then_some(host)
    };
    let is_here = |host: &str| {
        ["127.0.0.1", "localhost", "[::1]"].iter().any(|it| {
            host.strip_prefix(it).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        })
    };
    of_host("https://").is_some() || of_host("http://").is_some_and(is_here)
}

fn form(fields: &[(&str, &str)]) -> String {
    fields
        .iter()
        .map(|(name, value)| format!("{name}={}", coded(value)))
        .collect::<Vec<_>>()
        .join("&")
}

/// As in a query.
fn coded(text: &str) -> String {
    let byte = |it: u8| match it {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(it).to_string()
        }
        _ => format!("%{it:02X}"),
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_not_read_on_the_way() {
        for safe in
            ["https://id.example/a", "http://127.0.0.1:80/", "http://[::1]:8", "http://localhost"]
        {
            assert!(is_safe(safe), "{safe}");
        }
        for not in [
            "http://id.example",
            "https://",
            "ftp://a",
            "http://127.0.0.1.evil",
            "http://localhost@evil",
            "https://a b",
            "https://a\n",
            "https://a#b",
            "",
        ] {
            assert!(!is_safe(not), "{not}");
        }
        assert_eq!(form(&[("a", "b c&d=\u{fc}")]), "a=b%20c%26d%3D%C3%BC");
    }
}
