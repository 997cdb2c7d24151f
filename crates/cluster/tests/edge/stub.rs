//! An edge cache that answers as KubeEdge's MetaServer does, with a cloud behind a link that can be cut. What it does and
//! does not was seen at KubeEdge v1.23.0, which `make test-edge` runs; here it is quick:
//! - A list is the cloud's while the link is up, and the database's while it is not, or while cloudcore may not list that
//!   kind: with a selfLink, or, where the database has nothing of that kind, without any metadata at all.
//! - A list does not fill the database; the events of a watch that the cloud has granted do. What the cloud sends for the
//!   first watch of a kind after its start, the cache cannot read: it has no kind.
//! - Whoever watched before a cut is forgotten: the stream stays open, and nothing comes any more.
//! - A watch begins with ADDED for everything in the database, whatever resourceVersion it was asked for.
//! - Of fields it can choose by name and namespace only; other fields match nothing.
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
struct Inner {
    cloud: HashMap<String, Objects>,
    database: HashMap<String, Objects>,
    /// Of kinds whose watch the cloud has granted.
    granted: Vec<String>,
    /// Kinds that were watched before, of which the cloud's first word can be read.
    known: Vec<String>,
    watchers: Vec<(String, mpsc::UnboundedSender<Result<Bytes, Infallible>>)>,
    deaf: Vec<mpsc::UnboundedSender<Result<Bytes, Infallible>>>,
    version: u64,
    cut: bool,
    /// Kinds that cloudcore may not list.
    withheld: Vec<String>,
    asked: Vec<String>,
    bytes: u64,
}

#[derive(Clone, Default)]
pub struct Stub(Arc<Mutex<Inner>>);

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

impl Stub {
    /// Serves until the runtime ends; gives its URL.
    pub async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = axum::Router::new().fallback(answer).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.0.lock().unwrap())
    }

    /// Somebody writes it to the API server in the cloud.
    pub fn put(&self, kind: &str, mut object: Value) {
        self.with(|inner| {
            inner.version += 1;
            object["metadata"]["resourceVersion"] = json!(inner.version.to_string());
            let added = inner.cloud.entry(kind.into()).or_default().insert(key(&object), object.clone()).is_none();
            inner.push(kind, if added { "ADDED" } else { "MODIFIED" }, object);
        });
    }

    pub fn delete(&self, kind: &str, name: &str) {
        self.with(|inner| {
            let Some(object) = inner.cloud.entry(kind.into()).or_default().remove(name) else { return };
            inner.version += 1;
            inner.push(kind, "DELETED", object);
        });
    }

    /// Cut off, whoever watches hears nothing any more, also when the link is back.
    pub fn cut(&self, cut: bool) {
        self.with(|inner| {
            inner.cut = cut;
            inner.granted.clear();
            let deaf: Vec<_> = inner.watchers.drain(..).map(|(_, to)| to).collect();
            inner.deaf.extend(deaf);
        });
    }

    pub fn withhold(&self, kind: &str, withheld: bool) {
        self.with(|inner| {
            inner.withheld.retain(|one| one != kind);
            inner.withheld.extend(withheld.then(|| kind.to_owned()));
        });
    }

    /// The host has lost its database.
    pub fn wipe(&self) {
        self.with(|inner| inner.database.clear());
    }

    /// The host leaves its cloud, and what it knew of it.
    pub fn rejoin(&self) {
        self.with(|inner| {
            (inner.cloud, inner.database) = Default::default();
            inner.granted.clear();
            inner.watchers.clear();
        });
    }

    /// The database has nothing of this kind.
    pub fn forget(&self, kind: &str) {
        self.with(|inner| inner.database.remove(kind));
    }

    /// Every watch ends.
    pub fn hang_up(&self) {
        self.with(|inner| {
            inner.watchers.clear();
            inner.deaf.clear();
        });
    }

    /// The database is filled from now on.
    pub fn is_watched(&self) -> bool {
        self.with(|inner| ["services", "endpoints"].iter().all(|kind| inner.granted.iter().any(|one| one == kind)))
    }

    pub fn asked(&self) -> Vec<String> {
        self.with(|inner| inner.asked.clone())
    }

    pub fn bytes(&self) -> u64 {
        self.with(|inner| inner.bytes)
    }
}

impl Inner {
    fn push(&mut self, kind: &str, event: &str, object: Value) {
        if self.cut || !self.granted.iter().any(|granted| granted == kind) {
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
            let heard = watched != kind || to.send(Ok(line.clone())).is_ok();
            *bytes += if watched == kind && heard { line.len() as u64 } else { 0 };
            heard
        });
    }

    fn fill(&mut self, kind: &str) {
        let all: Vec<Value> = self.cloud.get(kind).into_iter().flat_map(Objects::values).cloned().collect();
        all.into_iter().for_each(|object| self.push(kind, "ADDED", object));
    }

    fn list(&self, kind: &str, path: &str) -> Value {
        let name = format!("{}List", kind.trim_end_matches('s'));
        let local = self.cut || self.withheld.iter().any(|one| one == kind);
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
        items.iter_mut().for_each(mislead);
        json!({ "apiVersion": "v1", "items": items, "kind": name, "metadata": metadata })
    }
}

fn mislead(object: &mut Value) {
    let ports = object["ports"].as_array().cloned().unwrap_or_default();
    if object["addressType"].is_string() && ports.iter().any(|port| port["name"] == "https") {
        object["endpoints"] = json!([{ "addresses": ["127.0.0.1"] }]);
        object["ports"] = json!([{ "name": "https", "port": 10550 }]);
    }
}

fn chosen(mut list: Value, query: &str) -> Value {
    let items = list["items"].as_array_mut().unwrap();
    if query.contains("fieldSelector") || query.contains("labelSelector=beeline.dev%2Fnothing") {
        items.clear();
    }
    if query.contains("labelSelector=%21service.kubernetes.io%2Fheadless") {
        items.retain(|item| item["metadata"]["labels"].get("service.kubernetes.io/headless").is_none());
    }
    list
}

async fn answer(State(stub): State<Stub>, request: Request) -> Response {
    let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or("").to_owned());
    let parts: Vec<&str> =
        path.trim_matches('/').split('/').skip(if path.starts_with("/apis/") { 3 } else { 2 }).collect();
    stub.with(|inner| inner.asked.push(format!("{path}?{query}")));
    match parts[..] {
        [kind] if query.contains("watch=true") => watch(&stub, kind, &query),
        [kind] => {
            let list = stub.with(|inner| inner.list(kind, &path));
            json_answer(&stub, StatusCode::OK, &chosen(list, &query))
        }
        [kind, name] => get(&stub, kind, name),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

/// What was read once stays in the database; what is nowhere is an internal error.
fn get(stub: &Stub, kind: &str, name: &str) -> Response {
    let found = stub.with(|inner| {
        let key = format!("/{name}");
        let place = if inner.cut { &inner.database } else { &inner.cloud };
        let object = place.get(kind)?.get(&key).cloned()?;
        inner.database.entry(kind.into()).or_default().insert(key, object.clone());
        Some(object)
    });
    match found {
        Some(object) => json_answer(stub, StatusCode::OK, &object),
        None => {
            let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "Internal error occurred: the server could not find the requested resource",
                "reason": "InternalError", "code": 500 });
            (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "application/json")], status.to_string())
                .into_response()
        }
    }
}

fn json_answer(stub: &Stub, code: StatusCode, value: &Value) -> Response {
    let text = value.to_string();
    stub.with(|inner| inner.bytes += text.len() as u64);
    (code, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

fn watch(stub: &Stub, kind: &str, query: &str) -> Response {
    let (to, mut from) = mpsc::unbounded_channel();
    stub.with(|inner| {
        let replayed: Vec<Value> = inner.database.get(kind).into_iter().flat_map(Objects::values).cloned().collect();
        for object in replayed {
            let line = Bytes::from(format!("{}\n", json!({ "type": "ADDED", "object": object })));
            inner.bytes += line.len() as u64;
            let _ = to.send(Ok(line));
        }
        inner.watchers.push((kind.to_owned(), to));
        assert!(!inner.withheld.iter().any(|one| one == kind), "cloudcore would wait for ever");
        if !inner.cut && !inner.granted.iter().any(|granted| granted == kind) {
            inner.granted.push(kind.to_owned());
        }
        match inner.known.iter().any(|known| known == kind) {
            true if !inner.cut => inner.fill(kind),
            _ => inner.known.push(kind.to_owned()),
        }
    });
    assert!(!query.contains("fieldSelector"), "{query}");
    let stream = futures::stream::poll_fn(move |context| from.poll_recv(context));
    ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(stream)).into_response()
}
