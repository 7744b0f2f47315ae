//! The web page, which is embedded in this program.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};

use crate::problem::Problem;

/// A file of the page.
pub(crate) struct File {
    path: &'static str,
    bytes: &'static [u8],
    gzip: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// What anybody gets who asks for something that is no part of the API.
pub(crate) async fn file(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    let path = uri.path().trim_start_matches('/');
    let is_api = path == "v1" || path.starts_with("v1/");
    if is_api || !matches!(method, Method::GET | Method::HEAD) {
        return Problem::not_found(format!("there is no /{path}; see /v1/openapi.json"))
            .into_response();
    }
    let of = |path: &str| FILES.iter().find(|file| file.path == path);
    // Addresses of views are the page's own.
    let is_view = !path.rsplit('/').next().unwrap_or_default().contains('.');
    match of(path).or_else(|| is_view.then(|| of("index.html")).flatten()) {
        Some(file) => found(file, &headers),
        None if is_view && FILES.is_empty() => {
            Problem::not_found("this xylem-web was built without its page; the API is at /v1")
                .into_response()
        }
        None => Problem::not_found(format!("there is no /{path}")).into_response(),
    }
}

fn found(file: &File, headers: &HeaderMap) -> Response {
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|it| it.to_str().ok());
    let takes_gzip = accepted.is_some_and(|it| it.contains("gzip"));
    let bytes = if takes_gzip { file.gzip } else { file.bytes };
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind(file.path)));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if takes_gzip {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    // Files of `assets` have a hash of their content in their names.
    let cache = if file.path.starts_with("assets/") {
        "public, max-age=31536000, immutable"
    } else {
        "no-cache"
    };
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    response
}

fn kind(path: &str) -> &'static str {
    match path.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "json" | "map" => "application/json",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        _ => "application/octet-stream",
    }
}
