//! Errors, as `application/problem+json`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::daemon::CallError;

/// Why a request was not done, in words for an operator.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) detail: String,
    /// After how many seconds it makes sense to try again.
    pub(crate) retry_after_s: Option<u64>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), retry_after_s: None }
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    pub(crate) fn too_many(detail: impl Into<String>, retry_after_s: u64) -> Self {
        let retry_after_s = Some(retry_after_s.max(1));
        Self { status: StatusCode::TOO_MANY_REQUESTS, detail: detail.into(), retry_after_s }
    }

    pub(crate) fn body(&self) -> String {
        #[derive(Serialize)]
        struct Body<'a> {
            r#type: &'static str,
            title: &'static str,
            status: u16,
            detail: &'a str,
        }
        let title = self.status.canonical_reason().unwrap_or_default();
        let status = self.status.as_u16();
        let body = Body { r#type: "about:blank", title, status, detail: &self.detail };
        serde_json::to_string(&body).unwrap_or_default()
    }
}

impl From<CallError> for Problem {
    fn from(error: CallError) -> Self {
        let detail = error.to_string();
        match error {
            CallError::Unreachable(_) => Self::new(StatusCode::BAD_GATEWAY, detail),
            CallError::Busy => {
                Self { status: StatusCode::SERVICE_UNAVAILABLE, detail, retry_after_s: Some(1) }
            }
            CallError::Refused(why) if why.starts_with("not permitted") => Self::forbidden(detail),
            CallError::Unknown(_) => Self::not_found(detail),
            CallError::Refused(_) => Self::new(StatusCode::CONFLICT, detail),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let kind = HeaderValue::from_static("application/problem+json");
        let mut response = (self.status, self.body()).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}
