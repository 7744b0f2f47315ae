//! Log-ins by a provider of OpenID Connect: those that have begun, and what a token of the provider has to say.
//!
//! Whose signature a token has, and what was asked of the provider, is the shell's business.

use std::collections::BTreeMap;

use base64ct::{Base64UrlUnpadded, Encoding as _};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::access::sha256;

/// For a user to log in at the provider, in seconds.
const KEPT_S: u64 = 600;
/// Log-ins that have begun; a further one ends the oldest.
const ALL_MAX: usize = 1024;
/// Clocks may differ by so much, in seconds.
const LEEWAY_S: u64 = 60;
/// Of the claim that says who it is.
const VALUE_BYTES_MAX: usize = 255;

/// A log-in that begins.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Begun {
    /// For the provider, which gives them back: the first by the browser, the second in its token.
    pub state: String,
    pub nonce: String,
    /// Of what the code is asked for with (PKCE, `S256`).
    pub challenge: String,
    /// For the browser, which shows it when it comes back: another one cannot end this log-in.
    pub browser: String,
}

/// A log-in whose browser has come back.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Returned {
    pub nonce: String,
    pub verifier: String,
}

#[derive(Clone, Debug)]
struct Pending {
    browser: [u8; 32],
    returned: Returned,
    began_s: u64,
}

/// Log-ins that have begun, by the hash of their state.
#[derive(Debug, Default)]
pub struct LogIns(BTreeMap<[u8; 32], Pending>);

impl LogIns {
    /// One begins, with random bytes.
    pub fn begin(&mut self, random: &[[u8; 32]; 4], now_s: u64) -> Begun {
        self.0.retain(|_, it| now_s < it.began_s + KEPT_S);
        if self.0.len() >= ALL_MAX
            && let Some(oldest) =
                self.0.iter().min_by_key(|(_, it)| it.began_s).map(|(key, _)| *key)
        {
            self.0.remove(&oldest);
        }
        let [state, nonce, verifier, browser] =
            random.each_ref().map(|it| Base64UrlUnpadded::encode_string(it));
        let challenge = Base64UrlUnpadded::encode_string(&hash(&verifier));
        let returned = Returned { nonce: nonce.clone(), verifier };
        let pending = Pending { browser: hash(&browser), returned, began_s: now_s };
        self.0.insert(hash(&state), pending);
        Begun { state, nonce, challenge, browser }
    }

    /// A browser comes back. That happens once; another browser changes nothing.
    pub fn take(&mut self, state: &str, browser: &str, now_s: u64) -> Option<Returned> {
        let key = hash(state);
        let known = self.0.get(&key)?;
        if known.browser != hash(browser) || now_s >= known.began_s + KEPT_S {
            return None;
        }
        self.0.remove(&key).map(|it| it.returned)
    }
}

fn hash(text: &str) -> [u8; 32] {
    sha256(text.as_bytes())
}

/// Whom a token is for.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
#[serde(untagged)]
pub enum Audience {
    One(String),
    Several(Vec<String>),
}

/// What a token says.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Claims {
    pub iss: String,
    pub sub: String,
    pub aud: Audience,
    /// In seconds since 1970.
    pub exp: u64,
    pub iat: u64,
    #[serde(default)]
    pub nbf: Option<u64>,
    pub nonce: String,
    #[serde(default)]
    pub azp: Option<String>,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// What it has to say.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    pub issuer: &'a str,
    pub client: &'a str,
    pub nonce: &'a str,
}

impl Claims {
    /// # Errors
    /// Why it is not for this log-in.
    pub fn check(&self, expected: &Expected<'_>, now_s: u64) -> Result<(), &'static str> {
        let is_for_us = match &self.aud {
            Audience::One(one) => one == expected.client,
            Audience::Several(all) => {
                all.iter().any(|it| it == expected.client) && (all.len() == 1 || self.azp.is_some())
            }
        };
        let faults = [
            (self.iss != expected.issuer, "it is of another issuer"),
            (!is_for_us, "it is for another client"),
            (
                self.azp.as_ref().is_some_and(|it| it != expected.client),
                "it was given to another client",
            ),
            (self.nonce != expected.nonce, "it is of another log-in"),
            (self.exp.saturating_add(LEEWAY_S) <= now_s, "it has expired"),
            (self.iat > now_s.saturating_add(LEEWAY_S), "it is of the future"),
            (
                self.nbf.is_some_and(|it| it > now_s.saturating_add(LEEWAY_S)),
                "it does not hold yet",
            ),
        ];
        faults.into_iter().find(|(is_so, _)| *is_so).map_or(Ok(()), |(_, why)| Err(why))
    }

    /// What this claim says. An address that the provider has not verified says nothing.
    ///
    /// # Errors
    /// Why it does not tell who it is.
    pub fn value(&self, claim: &str) -> Result<&str, &'static str> {
        let value = match claim {
            "sub" => Some(self.sub.as_str()),
            "email" if self.more.get("email_verified") != Some(&Value::Bool(true)) => {
                return Err("the address is not verified");
            }
            other => self.more.get(other).and_then(Value::as_str),
        };
        value
            .filter(|it| !it.is_empty() && it.len() <= VALUE_BYTES_MAX)
            .ok_or("it does not say who it is")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn random(of: u8) -> [[u8; 32]; 4] {
        [0, 1, 2, 3].map(|at| [of + at; 32])
    }

    #[test]
    fn a_log_in_ends_once_in_the_browser_where_it_began() {
        let mut log_ins = LogIns::default();
        let one = log_ins.begin(&random(0), 0);
        let two = log_ins.begin(&random(10), 0);
        assert_eq!(log_ins.take(&one.state, &two.browser, 1), None);
        assert_eq!(log_ins.take("", &one.browser, 1), None);
        let returned = log_ins.take(&one.state, &one.browser, 1).unwrap();
        assert_eq!(returned.nonce, one.nonce);
        let challenge = Base64UrlUnpadded::encode_string(&hash(&returned.verifier));
        assert_eq!(challenge, one.challenge);
        assert_eq!(log_ins.take(&one.state, &one.browser, 1), None, "it has ended");
        assert_eq!(log_ins.take(&two.state, &two.browser, KEPT_S), None, "it is too old");
    }

    #[test]
    fn so_many_are_kept() {
        let mut log_ins = LogIns::default();
        for at in 0..=ALL_MAX {
            let mut random = random(0);
            random[0][..8].copy_from_slice(&(at as u64).to_le_bytes());
            log_ins.begin(&random, 1);
        }
        assert_eq!(log_ins.0.len(), ALL_MAX);
    }

    #[test]
    fn a_token_is_of_this_issuer_for_this_client_this_log_in_and_now() {
        let expected = Expected { issuer: "https://id", client: "xylem", nonce: "n" };
        let with = |key: &str, value: Value| {
            let mut claims = json!({ "iss": "https://id", "sub": "ann", "aud": "xylem",
                "exp": 1000, "iat": 900, "nonce": "n" });
            claims[key] = value;
            let claims: Claims = serde_json::from_value(claims).map_err(|_| "no token")?;
            claims.check(&expected, 950)
        };
        for (key, value, said) in [
            ("sub", json!("bob"), Ok(())),
            ("aud", json!(["xylem"]), Ok(())),
            ("aud", json!(["xylem", "other"]), Err("it is for another client")),
            ("aud", json!("other"), Err("it is for another client")),
            ("aud", json!([]), Err("it is for another client")),
            ("azp", json!("xylem"), Ok(())),
            ("azp", json!("other"), Err("it was given to another client")),
            ("iss", json!("https://id/"), Err("it is of another issuer")),
            ("nonce", json!("m"), Err("it is of another log-in")),
            ("nonce", Value::Null, Err("no token")),
            ("exp", json!(890), Err("it has expired")),
            ("exp", json!(891), Ok(())),
            ("exp", json!("1000"), Err("no token")),
            ("exp", Value::Null, Err("no token")),
            ("iat", json!(1011), Err("it is of the future")),
            ("nbf", json!(1011), Err("it does not hold yet")),
            ("nbf", json!("0"), Err("no token")),
        ] {
            assert_eq!(with(key, value.clone()), said, "{key} {value}");
        }
    }

    #[test]
    fn an_address_counts_if_it_is_verified() {
        let claims = |more: Value| {
            let mut claims =
                json!({ "iss": "", "sub": "7", "aud": "", "exp": 0, "iat": 0, "nonce": "" });
            claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value::<Claims>(claims).unwrap()
        };
        let email = |verified: Value| {
            let claims = claims(json!({ "email": "ann@lab", "email_verified": verified }));
            claims.value("email").map(str::to_owned)
        };
        assert_eq!(email(json!(true)).as_deref(), Ok("ann@lab"));
        for not in [json!(false), json!("true"), Value::Null] {
            assert_eq!(email(not), Err("the address is not verified"));
        }
        assert_eq!(claims(json!({})).value("sub"), Ok("7"));
        assert_eq!(claims(json!({ "upn": 7 })).value("upn"), Err("it does not say who it is"));
        assert_eq!(claims(json!({ "upn": "" })).value("upn"), Err("it does not say who it is"));
    }
}
