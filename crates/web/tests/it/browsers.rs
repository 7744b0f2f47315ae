//! Browsers: sessions, and pages of other sites.

use std::time::{Duration, Instant};

use api::Role;

use crate::served::{PASSWORD, Web, detail, said};

fn cookie_of(response: &ureq::http::Response<ureq::Body>) -> String {
    let cookie = response.headers()["set-cookie"].to_str().unwrap();
    for word in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(word), "{cookie}");
    }
    cookie.split(';').next().unwrap().to_owned()
}

#[test]
fn a_session_begins_with_a_password_and_ends_when_told_to() {
    let web = Web::new();
    let body = format!(r#"{{"name":"ann","password":"{PASSWORD}"}}"#);
    let response = web.send("POST", "/v1/session", None, &[], &body);
    assert_eq!(response.status(), 200);
    let cookie = cookie_of(&response);
    let with = |method: &str, path: &str, more: &[(&str, &str)]| {
        let headers = [&[("cookie", cookie.as_str())], more].concat();
        said(web.send(method, path, None, &headers, ""))
    };
    assert_eq!(with("GET", "/v1/session", &[]).1["role"], "operator");
    // Another site's form sends the cookie along, if a browser lets it, and no header of its own.
    let refused = with("POST", "/v1/requests/list", &[]);
    assert_eq!(detail(&refused), "with a session, requests need the header Xylem-Request");
    assert_eq!(with("POST", "/v1/requests/list", &[("xylem-request", "1")]).0, 200);
    assert_eq!(with("DELETE", "/v1/session", &[("xylem-request", "1")]).0, 204);
    assert_eq!(with("GET", "/v1/session", &[]).0, 401);
    let log = web.log();
    assert!(log.contains("log in") && log.contains("log out") && !log.contains("horse"), "{log}");
}

#[test]
fn pages_of_other_sites_get_nothing() {
    let web = Web::new();
    let host = web.address().to_owned();
    for (origin, status) in [
        (format!("http://{host}"), 200),
        ("https://evil.example".to_owned(), 403),
        (format!("http://{host}.evil.example"), 403),
        ("null".to_owned(), 403),
    ] {
        let headers = [("origin", origin.as_str())];
        let response = web.send("GET", "/v1/vms", Some(Role::Viewer), &headers, "");
        assert_eq!(response.status(), status, "{origin}");
        assert!(response.headers().get("access-control-allow-origin").is_none());
        let body = format!(r#"{{"name":"ann","password":"{PASSWORD}"}}"#);
        let response = web.send("POST", "/v1/session", None, &headers, &body);
        assert_eq!(response.status(), status, "{origin}");
    }
}

#[test]
fn wrong_passwords_lock_a_name_out_for_that_address() {
    let web = Web::new();
    let log_in = |name: &str, password: &str| {
        let body = format!(r#"{{"name":"{name}","password":"{password}"}}"#);
        said(web.send("POST", "/v1/session", None, &[], &body))
    };
    let wrong = log_in("ann", "wrong");
    assert_eq!((wrong.0, detail(&wrong)), (401, "wrong name or password"));
    let is_long = |said: &crate::served::Said| {
        // Each failure doubles the time.
        let words = detail(said).strip_prefix("too many log-ins have failed; try again in ");
        words.is_some_and(|it| it != "1 s")
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_long(&log_in("ann", "wrong")) {
        assert!(Instant::now() < deadline, "it is not locked out");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(log_in("ann", PASSWORD).0, 429, "not even with the right one");
    assert_eq!(log_in("nobody", "wrong").0, 429, "the address has failed too often");
    assert_eq!(web.get("/v1/vms", Some(Role::Viewer)).0, 200, "tokens are not guessed");
}

#[test]
fn every_answer_tells_browsers_what_they_may_do_with_it() {
    let web = Web::new();
    for path in ["/", "/v1/health", "/v1/vms", "/nothing"] {
        let response = web.send("GET", path, None, &[], "");
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert!(header("content-security-policy").starts_with("default-src 'self';"), "{path}");
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("x-frame-options"), "DENY");
        assert!(!header("cache-control").is_empty());
    }
}
