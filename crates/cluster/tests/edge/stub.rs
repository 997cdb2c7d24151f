//! A stub of the edge cache that answers as KubeEdge's MetaServer does, with a cloud behind a link that can be cut. The
//! behaviour was observed at KubeEdge v1.23.0, which `make test-edge` runs:
//! - A list comes from the cloud while the link is up. It comes from the database while the link is down, or if
//!   cloudcore may not list the kind: then it has a selfLink, or no metadata at all if the database has no object of
//!   the kind.
//! - A list does not fill the database. The events of a watch that the cloud has granted do. The cache cannot read what
//!   the cloud sends for the first watch of a kind after its start, because it has no kind.
//! - A watch from before an interruption is forgotten: the stream stays open, and no events arrive.
//! - A watch starts with ADDED for every object of the database, whatever resourceVersion was requested.
//! - Field selectors support name and namespace only; other fields match nothing.
//! - Items of a list of EndpointSlices with a port named https are rewritten to 127.0.0.1:10550.

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;

type Objects = BTreeMap<String, Value>;

#[derive(Default)]
struct StubState {
    cloud: HashMap<String, Objects>,
    database: HashMap<String, Objects>,
    /// Kinds whose watch the cloud has granted.
    granted: Vec<String>,
    /// Kinds that were watched before, so that the cache can read the first events of the cloud.
    known: Vec<String>,
    watchers: Vec<(String, mpsc::UnboundedSender<Result<Bytes, Infallible>>)>,
    /// Watches from before an interruption.
    silent: Vec<mpsc::UnboundedSender<Result<Bytes, Infallible>>>,
    version: u64,
    is_cut: bool,
    /// Kinds that cloudcore may not list.
    forbidden: Vec<String>,
    requests: Vec<String>,
    bytes: u64,
}

#[derive(Clone, Default)]
pub struct EdgeCacheStub(Arc<Mutex<StubState>>);

fn key(object: &Value) -> String {
    format!(
        "{}/{}",
        object["metadata"]["namespace"].as_str().unwrap_or(""),
        object["metadata"]["name"].as_str().unwrap()
    )
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl EdgeCacheStub {
    /// Starts the server and gives its URL.
    pub async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = axum::Router::new().fallback(respond).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }

    fn with<T>(&self, work: impl FnOnce(&mut StubState) -> T) -> T {
        work(&mut self.0.lock().unwrap())
    }

    /// Writes an object to the API server in the cloud.
    pub fn put(&self, kind: &str, mut object: Value) {
        self.with(|state| {
            state.version += 1;
            object["metadata"]["resourceVersion"] = json!(state.version.to_string());
            let added = state.cloud.entry(kind.into()).or_default().insert(key(&object), object.clone()).is_none();
            state.push(kind, if added { "ADDED" } else { "MODIFIED" }, object);
        });
    }

    pub fn delete(&self, kind: &str, name: &str) {
        self.with(|state| {
            let Some(object) = state.cloud.entry(kind.into()).or_default().remove(name) else { return };
            state.version += 1;
            state.push(kind, "DELETED", object);
        });
    }

    /// Watches that are open now receive nothing any more, even after the link is restored.
    pub fn cut_link(&self) {
        self.set_link(true);
    }

    pub fn restore_link(&self) {
        self.set_link(false);
    }

    fn set_link(&self, is_cut: bool) {
        self.with(|state| {
            state.is_cut = is_cut;
            state.granted.clear();
            let silent: Vec<_> = state.watchers.drain(..).map(|(_, to)| to).collect();
            state.silent.extend(silent);
        });
    }

    pub fn forbid(&self, kind: &str, forbidden: bool) {
        self.with(|state| {
            state.forbidden.retain(|one| one != kind);
            state.forbidden.extend(forbidden.then(|| kind.to_owned()));
        });
    }

    /// Deletes the database of the host.
    pub fn clear_all_databases(&self) {
        self.with(|state| state.database.clear());
    }

    /// Joins the host to another cloud, which deletes its database.
    pub fn join_other_cloud(&self) {
        self.with(|state| {
            (state.cloud, state.database) = Default::default();
            state.granted.clear();
            state.watchers.clear();
        });
    }

    /// Deletes the objects of one kind from the database.
    pub fn clear_database(&self, kind: &str) {
        self.with(|state| state.database.remove(kind));
    }

    /// Ends every watch.
    pub fn end_watches(&self) {
        self.with(|state| {
            state.watchers.clear();
            state.silent.clear();
        });
    }

    /// Whether the watches are open, so that the database is filled from now on.
    pub fn is_watched(&self) -> bool {
        self.with(|state| ["services", "endpoints"].iter().all(|kind| state.granted.iter().any(|one| one == kind)))
    }

    pub fn requests(&self) -> Vec<String> {
        self.with(|state| state.requests.clone())
    }

    pub fn bytes(&self) -> u64 {
        self.with(|state| state.bytes)
    }
}

impl StubState {
    fn push(&mut self, kind: &str, event: &str, object: Value) {
        if self.is_cut || !self.granted.iter().any(|granted| granted == kind) {
            return;
        }
        let database = self.database.entry(kind.into()).or_default();
        match event {
            "DELETED" => drop(database.remove(&key(&object))),
            _ => drop(database.insert(key(&object), object.clone())),
        }
        let line = Bytes::from(format!("{}\n", json!({ "type": event, "object": object })));
        let bytes = &mut self.bytes;
        self.watchers.retain(|(watched, to)| {
            let is_open = watched != kind || to.send(Ok(line.clone())).is_ok();
            *bytes += if watched == kind && is_open { line.len() as u64 } else { 0 };
            is_open
        });
    }

    fn fill(&mut self, kind: &str) {
        let all: Vec<Value> = self.cloud.get(kind).into_iter().flat_map(Objects::values).cloned().collect();
        all.into_iter().for_each(|object| self.push(kind, "ADDED", object));
    }

    fn list(&self, kind: &str, path: &str) -> Value {
        let name = format!("{}List", kind.trim_end_matches('s'));
        let local = self.is_cut || self.forbidden.iter().any(|one| one == kind);
        let objects = if local { self.database.get(kind) } else { self.cloud.get(kind) };
        let mut items: Vec<Value> = objects.into_iter().flat_map(Objects::values).cloned().collect();
        if local && items.is_empty() {
            return json!({ "apiVersion": "v1", "items": [], "kind": name });
        }
        let newest = self.database.values().flat_map(Objects::values).map(version).max().unwrap_or(0);
        let metadata = if local {
            json!({ "resourceVersion": newest.to_string(), "selfLink": path })
        } else {
            json!({ "resourceVersion": self.version.to_string() })
        };
        items.iter_mut().for_each(rewrite_slice);
        json!({ "apiVersion": "v1", "items": items, "kind": name, "metadata": metadata })
    }
}

fn rewrite_slice(object: &mut Value) {
    let ports = object["ports"].as_array().cloned().unwrap_or_default();
    if object["addressType"].is_string() && ports.iter().any(|port| port["name"] == "https") {
        object["endpoints"] = json!([{ "addresses": ["127.0.0.1"] }]);
        object["ports"] = json!([{ "name": "https", "port": 10550 }]);
    }
}

fn apply_selectors(mut list: Value, query: &str) -> Value {
    let items = list["items"].as_array_mut().unwrap();
    if query.contains("fieldSelector") || query.contains("labelSelector=beeline.dev%2Fnothing") {
        items.clear();
    }
    if query.contains("labelSelector=%21service.kubernetes.io%2Fheadless") {
        items.retain(|item| item["metadata"]["labels"].get("service.kubernetes.io/headless").is_none());
    }
    list
}

async fn respond(State(stub): State<EdgeCacheStub>, request: Request) -> Response {
    let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or("").to_owned());
    let parts: Vec<&str> =
        path.trim_matches('/').split('/').skip(if path.starts_with("/apis/") { 3 } else { 2 }).collect();
    stub.with(|state| state.requests.push(format!("{path}?{query}")));
    match parts[..] {
        [kind] if query.contains("watch=true") => watch(&stub, kind, &query),
        [kind] => {
            let list = stub.with(|state| state.list(kind, &path));
            json_response(&stub, StatusCode::OK, &apply_selectors(list, &query))
        }
        [kind, name] => get(&stub, kind, name),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

/// An object that was read is stored in the database. A missing object is an internal error.
fn get(stub: &EdgeCacheStub, kind: &str, name: &str) -> Response {
    let found = stub.with(|state| {
        let key = format!("/{name}");
        let place = if state.is_cut { &state.database } else { &state.cloud };
        let object = place.get(kind)?.get(&key).cloned()?;
        state.database.entry(kind.into()).or_default().insert(key, object.clone());
        Some(object)
    });
    match found {
        Some(object) => json_response(stub, StatusCode::OK, &object),
        None => {
            let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "Internal error occurred: the server could not find the requested resource",
                "reason": "InternalError", "code": 500 });
            (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "application/json")], status.to_string())
                .into_response()
        }
    }
}

fn json_response(stub: &EdgeCacheStub, code: StatusCode, value: &Value) -> Response {
    let text = value.to_string();
    stub.with(|state| state.bytes += text.len() as u64);
    (code, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

fn watch(stub: &EdgeCacheStub, kind: &str, query: &str) -> Response {
    let (to, mut from) = mpsc::unbounded_channel();
    stub.with(|state| {
        let replayed: Vec<Value> = state.database.get(kind).into_iter().flat_map(Objects::values).cloned().collect();
        for object in replayed {
            let line = Bytes::from(format!("{}\n", json!({ "type": "ADDED", "object": object })));
            state.bytes += line.len() as u64;
            let _ = to.send(Ok(line));
        }
        state.watchers.push((kind.to_owned(), to));
        assert!(!state.forbidden.iter().any(|one| one == kind), "cloudcore would wait forever");
        if !state.is_cut && !state.granted.iter().any(|granted| granted == kind) {
            state.granted.push(kind.to_owned());
        }
        match state.known.iter().any(|known| known == kind) {
            true if !state.is_cut => state.fill(kind),
            _ => state.known.push(kind.to_owned()),
        }
    });
    assert!(!query.contains("fieldSelector"), "{query}");
    let stream = futures::stream::poll_fn(move |context| from.poll_recv(context));
    ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(stream)).into_response()
}
