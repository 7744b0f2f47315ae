//! Log-ins by a provider of OpenID Connect, which is a small one of ours and says what a test wants.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::Role;
use base64ct::{Base64UrlUnpadded, Encoding as _};
use gate::{Scope, Secret, Who, entry_line};
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};

use crate::served::{PASSWORD, Said, Web, detail, said, shared_host};

const ORIGIN: &str = "https://xen1.example";
const RETURN: &str = "https://xen1.example/v1/session/oidc/callback";

/// What it does.
#[derive(Default)]
struct Ways {
    /// Codes that it has given, with the challenge and the nonce of each.
    codes: BTreeMap<String, (String, String)>,
    /// Claims that its tokens have instead of the right ones.
    claims: Value,
    /// In place of a token's head.
    head: Option<Value>,
    /// It signs with a key that it does not tell of.
    is_forged: bool,
    /// What it says of itself instead.
    discovery: Option<String>,
}

struct Provider {
    url: String,
    ways: Arc<Mutex<Ways>>,
}

fn new_key() -> EcdsaKeyPair {
    let random = SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
    EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap()
}

fn base64(bytes: &[u8]) -> String {
    Base64UrlUnpadded::encode_string(bytes)
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn fields(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter_map(|it| it.split_once('='));
    let decoded = |it: &str| it.replace("%3A", ":").replace("%2F", "/").replace("%20", " ");
    pairs.map(|(name, value)| (name.to_owned(), decoded(value))).collect()
}

impl Provider {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let ways = Arc::new(Mutex::new(Ways::default()));
        let (for_thread, issuer) = (Arc::clone(&ways), url.clone());
        std::thread::spawn(move || {
            let (key, forged) = (new_key(), new_key());
            for stream in listener.incoming().map_while(Result::ok) {
                serve(stream, &issuer, &key, &forged, &for_thread);
            }
        });
        Self { url, ways }
    }

    /// A host that asks it, and lets `ann` in.
    fn host(&self, more: &[&str]) -> Web {
        let own = [
            &["--oidc-issuer", &self.url, "--oidc-client-id", "xylem", "--origin", ORIGIN][..],
            &["--oidc-client-secret-file", "/dev/null"],
        ];
        let web = Web::before(shared_host(), &[&own.concat(), more].concat());
        let scope = Scope::Tagged(["team-a".to_owned()].into());
        let who = Who { name: "by-oidc".to_owned(), role: Role::Operator, expires: None, scope };
        let file = web.folder.path("clients");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text + &entry_line(&who, &Secret::oidc("ann|7")).unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        web
    }

    fn with(&self, change: impl FnOnce(&mut Ways)) {
        change(&mut self.ways.lock().unwrap());
    }

    /// Somebody logs in there, as a browser was told to. Returns the code.
    fn log_in(&self, asked: &BTreeMap<String, String>) -> String {
        let code = format!("code-{}", asked["state"]);
        let kept = (asked["code_challenge"].clone(), asked["nonce"].clone());
        self.with(|it| drop(it.codes.insert(code.clone(), kept)));
        code
    }
}

fn serve(
    stream: TcpStream,
    issuer: &str,
    key: &EcdsaKeyPair,
    forged: &EcdsaKeyPair,
    ways: &Mutex<Ways>,
) {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let path = line.split(' ').nth(1).unwrap().to_owned();
    while !line.trim().is_empty() {
        line.clear();
        let _read = reader.read_line(&mut line);
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let mut ways = ways.lock().unwrap();
    let answer = match &*path {
        "/.well-known/openid-configuration" => {
            ways.discovery.clone().unwrap_or_else(|| discovery(issuer))
        }
        "/keys" => {
            let point = key.public_key().as_ref();
            json!({ "keys": [{ "kty": "EC", "crv": "P-256", "kid": "k", "use": "sig",
                "x": base64(&point[1..33]), "y": base64(&point[33..]) }] })
            .to_string()
        }
        _ => {
            let key = if ways.is_forged { forged } else { key };
            token(&mut ways, issuer, key, &String::from_utf8(body).unwrap())
        }
    };
    let status = if answer.is_empty() { "400 Bad Request" } else { "200 OK" };
    let head = format!(
        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        answer.len()
    );
    let _gone = reader.get_mut().write_all((head + &answer).as_bytes());
}

fn discovery(issuer: &str) -> String {
    json!({ "issuer": issuer, "authorization_endpoint": format!("{issuer}/authorize?of=xylem"),
        "token_endpoint": format!("{issuer}/token"), "jwks_uri": format!("{issuer}/keys") })
    .to_string()
}

/// For a code, once, and for who began the log-in; otherwise nothing.
fn token(ways: &mut Ways, issuer: &str, key: &EcdsaKeyPair, body: &str) -> String {
    let said = fields(body);
    let verified = base64(digest(&SHA256, said["code_verifier"].as_bytes()).as_ref());
    let Some((challenge, nonce)) = ways.codes.remove(&said["code"]) else { return String::new() };
    if challenge != verified || said["redirect_uri"] != RETURN {
        return String::new();
    }
    let now = unix_s();
    let mut claims = json!({ "iss": issuer, "sub": "ann|7", "aud": "xylem", "exp": now + 300, "iat": now,
        "nonce": nonce });
    if let Value::Object(others) = &ways.claims {
        claims.as_object_mut().unwrap().extend(others.clone());
    }
    let head = ways.head.clone().unwrap_or_else(|| json!({ "alg": "ES256", "kid": "k" }));
    let message = format!(
        "{}.{}",
        base64(head.to_string().as_bytes()),
        base64(claims.to_string().as_bytes())
    );
    let signature = key.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
    let signature = if head["alg"] == "none" { String::new() } else { base64(signature.as_ref()) };
    json!({ "id_token": format!("{message}.{signature}"), "access_token": "x", "token_type": "Bearer" }).to_string()
}

/// A browser at the host: what it was sent to the provider with, and its cookie.
struct Browser<'a> {
    web: &'a Web,
    asked: BTreeMap<String, String>,
    cookie: String,
}

impl<'a> Browser<'a> {
    fn begin(web: &'a Web) -> Self {
        // Whoever names another host gets no other place to come back to.
        let headers = [("host", "evil.example"), ("x-forwarded-host", "evil.example")];
        let response =
            web.send("GET", "/v1/session/oidc?next=https://evil.example", None, &headers[1..], "");
        assert_eq!(response.status(), 303);
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        let (to, cookie) = (header("location"), header("set-cookie"));
        for word in ["HttpOnly", "SameSite=Lax", "Path=/v1/session/oidc/callback", "Max-Age=600"] {
            assert!(cookie.contains(word), "{cookie}");
        }
        let asked = fields(to.split_once('?').unwrap().1);
        assert_eq!(
            (asked["redirect_uri"].as_str(), asked["code_challenge_method"].as_str()),
            (RETURN, "S256")
        );
        assert!(!to.contains("evil"), "{to}");
        Self { web, asked, cookie: cookie.split(';').next().unwrap().to_owned() }
    }

    fn comes_back(&self, cookie: &str, query: &str) -> ureq::http::Response<ureq::Body> {
        let path = format!("/v1/session/oidc/callback?{query}");
        self.web.send("GET", &path, None, &[("cookie", cookie)], "")
    }

    fn ends(&self, provider: &Provider) -> Said {
        let code = provider.log_in(&self.asked);
        said(self.comes_back(&self.cookie, &format!("state={}&code={code}", self.asked["state"])))
    }
}

#[test]
fn a_browser_logs_in_by_the_provider() {
    let provider = Provider::new();
    let web = provider.host(&[]);
    assert_eq!(web.get("/v1/health", None).1["oidc"], true);
    let browser = Browser::begin(&web);
    let code = provider.log_in(&browser.asked);
    let query = format!(
        "state={}&code={code}&iss={}&next=https://evil.example",
        browser.asked["state"], provider.url
    );
    let response = browser.comes_back(&format!("a=b; {}", browser.cookie), &query);
    assert_eq!(
        (response.status().as_u16(), &response.headers()["location"]),
        (303, &"/".parse().unwrap())
    );
    let cookies: Vec<_> =
        response.headers().get_all("set-cookie").iter().map(|it| it.to_str().unwrap()).collect();
    assert!(
        cookies[0].contains("; HttpOnly; SameSite=Strict") && cookies[1].contains("Max-Age=0"),
        "{cookies:?}"
    );
    let session = cookies[0].split(';').next().unwrap();
    let who = said(web.send("GET", "/v1/session", None, &[("cookie", session)], "")).1;
    assert_eq!(
        (&who["who"], &who["role"], &who["tags"]),
        (&json!("by-oidc"), &json!("operator"), &json!(["team-a"]))
    );
    // The same answer again: neither the state nor the code counts twice.
    let again = said(browser.comes_back(&browser.cookie, &query));
    assert_eq!(detail(&again), "this log-in did not begin in this browser, or not lately");
    let other = Browser::begin(&web);
    let replay = said(
        other.comes_back(&other.cookie, &format!("state={}&code={code}", other.asked["state"])),
    );
    assert_eq!((replay.0, detail(&replay)), (401, "it answers with 400 Bad Request"));
    let log = web.log();
    assert!(
        log.contains(r#""who":"by-oidc","from":"127.0.0.1","what":"log in by oidc","result":"ok""#),
        "{log}"
    );
    assert!(!log.contains(&code), "{log}");
}

#[test]
fn what_the_provider_does_not_say_of_this_log_in_lets_nobody_in() {
    let provider = Provider::new();
    let web = provider.host(&[]);
    let now = unix_s();
    for (claims, why) in [
        (json!({ "nonce": "other" }), "the token: it is of another log-in"),
        (json!({ "iss": "https://evil.example" }), "the token: it is of another issuer"),
        (json!({ "aud": "other" }), "the token: it is for another client"),
        (
            json!({ "aud": ["xylem", "other"], "azp": "other" }),
            "the token: it was given to another client",
        ),
        (json!({ "exp": now - 100 }), "the token: it has expired"),
        (json!({ "exp": null }), "the token is none"),
        (json!({ "iat": now + 1000 }), "the token: it is of the future"),
        (json!({ "sub": "" }), "the token: it does not say who it is"),
    ] {
        provider.with(|it| it.claims = claims);
        let refused = Browser::begin(&web).ends(&provider);
        assert_eq!((refused.0, detail(&refused)), (401, why));
    }
    provider.with(|it| it.claims = json!({ "sub": "by-oidc" }));
    let refused = Browser::begin(&web).ends(&provider);
    assert_eq!(
        (refused.0, detail(&refused)),
        (403, "nobody is let in whom the provider calls so: by-oidc")
    );
    provider.with(|it| it.claims = Value::Null);
    for (head, why) in [
        (json!({ "alg": "none" }), "the token is signed by an algorithm that is not taken"),
        (
            json!({ "alg": "HS256", "kid": "k" }),
            "the token is signed by an algorithm that is not taken",
        ),
        (json!({ "alg": "RS256", "kid": "k" }), "the token's signature is wrong"),
        (json!({ "alg": "ES256", "kid": "m" }), "the token is signed by no key of the provider"),
    ] {
        provider.with(|it| it.head = Some(head));
        let refused = Browser::begin(&web).ends(&provider);
        assert_eq!((refused.0, detail(&refused)), (401, why));
    }
    provider.with(|it| (it.head, it.is_forged) = (None, true));
    assert_eq!(detail(&Browser::begin(&web).ends(&provider)), "the token's signature is wrong");
}

#[test]
fn a_log_in_ends_in_the_browser_where_it_began() {
    let provider = Provider::new();
    let web = provider.host(&[]);
    let attacker = Browser::begin(&web);
    let query =
        format!("state={}&code={}", attacker.asked["state"], provider.log_in(&attacker.asked));
    let victim = Browser::begin(&web);
    for (cookie, query) in [
        // The attacker's log-in in the victim's browser, which has begun one or none.
        (victim.cookie.as_str(), query.as_str()),
        ("", &query),
        ("xylem-oidc=", &query),
        (&victim.cookie, "state=&code=x"),
        (&victim.cookie, "state=other&code=x"),
        (&victim.cookie, "code=x"),
        (&victim.cookie, "error=access_denied&state=x"),
        (&victim.cookie, ""),
    ] {
        let refused = said(victim.comes_back(cookie, query));
        assert_eq!(refused.0, 401, "{query} {refused:?}");
    }
    let of_another = format!("{query}&iss=https://evil.example");
    let refused = said(attacker.comes_back(&attacker.cookie, &of_another));
    assert_eq!(detail(&refused), "this log-in is of another provider");
    assert_eq!(victim.ends(&provider).0, 303, "it is not disturbed");
}

#[test]
fn an_address_has_to_be_verified() {
    let provider = Provider::new();
    let web = provider.host(&["--oidc-claim", "email"]);
    for (verified, status) in
        [(json!(false), 401), (Value::Null, 401), (json!("true"), 401), (json!(true), 303)]
    {
        provider.with(|it| it.claims = json!({ "email": "ann|7", "email_verified": verified }));
        assert_eq!(Browser::begin(&web).ends(&provider).0, status, "{verified}");
    }
}

#[test]
fn a_provider_that_is_down_slow_or_hostile_holds_up_nobody_else() {
    let begin = |web: &Web| said(web.send("GET", "/v1/session/oidc", None, &[], ""));
    let provider = Provider::new();
    for discovery in [
        "no JSON".to_owned(),
        " ".repeat(1 << 20),
        discovery("https://evil.example"),
        discovery(&provider.url).replace("/token", "/token#"),
        discovery(&provider.url).replace(&format!("{}/keys", provider.url), "http://evil.example/"),
        discovery(&provider.url).replace(&format!("{}/authorize", provider.url), "javascript:"),
    ] {
        provider.with(|it| it.discovery = Some(discovery));
        let web = provider.host(&[]);
        let refused = begin(&web);
        assert_eq!(refused.0, 502, "{refused:?}");
    }
    // It takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let web = Provider { url, ways: Arc::default() }.host(&[]);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..6).map(|_| scope.spawn(|| begin(&web).0)).collect();
        std::thread::sleep(Duration::from_millis(300));
        let body = format!(r#"{{"name":"ann","password":"{PASSWORD}"}}"#);
        let log_in = said(web.send("POST", "/v1/session", None, &[], &body));
        assert_eq!(log_in.0, 200);
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
        let mut statuses: Vec<_> = waiting.into_iter().map(|it| it.join().unwrap()).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [502, 502, 502, 502, 503, 503]);
    });
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let none = Web::new();
    assert_eq!((begin(&none).0, &none.get("/v1/health", None).1["oidc"]), (404, &json!(false)));
}

#[test]
fn a_person_is_told_by_the_page_why_nobody_is_logged_in() {
    const ACCEPT: (&str, &str) = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");
    let provider = Provider::new();
    let web = provider.host(&[]);
    let back = |browser: &Browser<'_>, query: &str| {
        let path = format!("/v1/session/oidc/callback?{query}");
        web.send("GET", &path, None, &[("cookie", &browser.cookie), ACCEPT], "")
    };
    let is = |response: ureq::http::Response<ureq::Body>, code: &str| {
        let headers = response.headers().clone();
        assert_eq!(response.status(), 303);
        assert_eq!(headers["location"], *format!("/#log-in={code}"));
        assert!(headers["content-security-policy"].to_str().unwrap().starts_with("default-src"));
        assert!(!headers.contains_key("set-cookie"), "nobody is logged in");
        assert_eq!(said(response).1, "");
    };
    let browser = Browser::begin(&web);
    let (state, code) = (browser.asked["state"].clone(), provider.log_in(&browser.asked));
    // What the provider says of it is for nobody's eyes.
    is(back(&browser, &format!("state={state}&error=%3Cscript%3E&error_description=x")), "refused");
    is(back(&browser, &format!("state=other&code={code}")), "stale");
    provider.with(|it| it.claims = json!({ "sub": "<b>bob</b>" }));
    is(back(&browser, &format!("state={state}&code={code}")), "unknown");
    is(back(&browser, &format!("state={state}&code={code}")), "stale");
    let other = Browser::begin(&web);
    is(back(&other, &format!("state={}&code=forged", other.asked["state"])), "refused");
    // A program is told as ever.
    assert_eq!(said(browser.comes_back(&browser.cookie, "error=access_denied")).0, 401);
    let none = Web::new();
    is(none.send("GET", "/v1/session/oidc", None, &[ACCEPT], ""), "none");
}
