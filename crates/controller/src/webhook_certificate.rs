//! Maintains the webhook's certificate and the key of its tokens in a Secret that the replicas share, and its CA
//! certificates and the path with the current token in the webhook configuration. Every replica serves the certificate of
//! the Secret. The leader generates, prepares and promotes.

use crate::certificate::{Certificate, RotationStep, generate, rotation_step};
use crate::settings::ControllerSettings;
use crate::webhook::ServingCertificate;
use crate::webhook_token::{WebhookTokens, generate_key};
use anyhow::Context;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{ValidatingWebhookConfiguration, WebhookClientConfig};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

const CHAIN: &str = "tls.crt";
const KEY: &str = "tls.key";
/// All trusted CA certificates: of the current, the next and the previous certificate.
const CA_BUNDLE: &str = "ca.crt";
const OWN_CA: &str = "own-ca.crt";
/// The key of the tokens in the path ([`crate::webhook_token`]).
const TOKEN_KEY: &str = "token.key";
const NEXT_CHAIN: &str = "next.crt";
const NEXT_KEY: &str = "next.key";
const NEXT_CA: &str = "next-ca.crt";
const VALIDITY: &str = "beeline.dev/certificate-validity";
const NEXT_VALIDITY: &str = "beeline.dev/next-certificate-validity";
/// When the CA of the next certificate was written into the webhook configuration.
const NEXT_PUBLISHED_AT: &str = "beeline.dev/next-certificate-published-at";

pub struct WebhookCertificate {
    secrets: Api<Secret>,
    configurations: Api<ValidatingWebhookConfiguration>,
    settings: ControllerSettings,
    serving: Arc<ServingCertificate>,
    tokens: Arc<WebhookTokens>,
    /// The certificate chain that is served now.
    served_chain: String,
    /// Whether the missing webhook configuration has been logged.
    missing_logged: bool,
}

impl WebhookCertificate {
    pub fn new(
        client: Client,
        settings: &ControllerSettings,
        serving: Arc<ServingCertificate>,
        tokens: Arc<WebhookTokens>,
    ) -> WebhookCertificate {
        WebhookCertificate {
            secrets: Api::namespaced(client.clone(), &settings.namespace),
            configurations: Api::all(client),
            settings: settings.clone(),
            serving,
            tokens,
            served_chain: String::new(),
            missing_logged: false,
        }
    }

    pub async fn run(mut self, mut leader: watch::Receiver<bool>) -> anyhow::Result<()> {
        let lifetime = self.settings.certificate_lifetime;
        let interval = (lifetime / 60).clamp(Duration::from_millis(500), Duration::from_secs(10));
        loop {
            let leading = *leader.borrow_and_update();
            if let Err(error) = self.round(leading).await {
                tracing::warn!(error = format!("{error:#}"), "cannot maintain the webhook's certificate, retrying");
            }
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                changed = leader.changed() => changed?,
            }
        }
    }

    async fn round(&mut self, leading: bool) -> anyhow::Result<()> {
        let mut secret = self.secrets.get_opt(&self.settings.secret).await.with_context(|| self.secret_title())?;
        if leading {
            secret = Some(self.rotate(secret).await?);
        }
        let Some(secret) = secret else { return Ok(()) };
        self.load_token_key(&secret);
        let (chain, key) = (text(&secret, CHAIN), text(&secret, KEY));
        if !chain.is_empty() && chain != self.served_chain {
            self.serving.set(&chain, &key).with_context(|| self.secret_title())?;
            self.served_chain = chain;
            let not_after = validity(&secret, VALIDITY).map_or(0, |(_, not_after)| not_after);
            tracing::info!(not_after, "serving a new webhook certificate");
        }
        Ok(())
    }

    fn load_token_key(&self, secret: &Secret) {
        let key = secret.data.as_ref().and_then(|data| data.get(TOKEN_KEY)).filter(|key| !key.0.is_empty());
        key.into_iter().for_each(|key| self.tokens.set_key(&key.0));
    }

    fn secret_title(&self) -> String {
        format!("Secret {}/{}", self.settings.namespace, self.settings.secret)
    }

    /// Performs one step of the rotation, and writes the CA certificates into the webhook configuration.
    async fn rotate(&mut self, secret: Option<Secret>) -> anyhow::Result<Secret> {
        let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
        let current = secret.as_ref().filter(|secret| !text(secret, CHAIN).is_empty());
        let current = current.and_then(|secret| validity(secret, VALIDITY));
        let next_published_at = secret.as_ref().and_then(|secret| annotation(secret, NEXT_PUBLISHED_AT)?.parse().ok());
        let has_next = secret.as_ref().is_some_and(|secret| !text(secret, NEXT_CHAIN).is_empty());
        let changed = match rotation_step(now, current, next_published_at, self.settings.certificate_lifetime) {
            RotationStep::Generate => Some(self.generated_secret(secret.as_ref(), now)?),
            RotationStep::Prepare if !has_next => {
                secret.as_ref().map(|secret| self.secret_with_next(secret, now)).transpose()?
            }
            RotationStep::Promote => secret.as_ref().map(promoted_secret),
            RotationStep::Prepare | RotationStep::Wait => None,
        };
        let changed = with_token_key(changed, secret.as_ref())?;
        let mut secret = match changed {
            Some(changed) => self.write(&changed).await?,
            None => secret.context("the Secret of the certificate is missing")?,
        };
        self.load_token_key(&secret);
        let published = self.publish(&text(&secret, CA_BUNDLE), now).await?;
        // The time for the API servers to load the next CA starts now, not when the Secret was written.
        if published && is_next_unpublished(&secret) {
            annotations(&mut secret).insert(NEXT_PUBLISHED_AT.into(), now.to_string());
            secret = self.write(&secret).await?;
        }
        Ok(secret)
    }

    fn generated_secret(&self, before: Option<&Secret>, now: u64) -> anyhow::Result<Secret> {
        let generated = generate(&self.settings.webhook_names, now, self.settings.certificate_lifetime)?;
        let mut secret = before.cloned().unwrap_or_else(|| Secret {
            metadata: ObjectMeta { name: Some(self.settings.secret.clone()), ..ObjectMeta::default() },
            type_: Some("Opaque".into()),
            ..Secret::default()
        });
        let token_key = secret.data.take().and_then(|mut data| data.remove(TOKEN_KEY));
        secret.data = token_key.map(|key| BTreeMap::from([(TOKEN_KEY.to_owned(), key)]));
        // Other annotations stay, for example those by which Helm recognises its Secret.
        annotations(&mut secret).retain(|key, _| ![VALIDITY, NEXT_VALIDITY, NEXT_PUBLISHED_AT].contains(&key.as_str()));
        set(&mut secret, [(CHAIN, &generated.chain), (KEY, &generated.key), (OWN_CA, &generated.ca)]);
        set(&mut secret, [(CA_BUNDLE, &generated.ca)]);
        annotations(&mut secret).insert(VALIDITY.into(), format_validity(&generated));
        tracing::info!(not_after = generated.not_after, "generated a webhook certificate");
        Ok(secret)
    }

    fn secret_with_next(&self, before: &Secret, now: u64) -> anyhow::Result<Secret> {
        let next = generate(&self.settings.webhook_names, now, self.settings.certificate_lifetime)?;
        let mut secret = before.clone();
        let bundle = format!("{}{}", text(before, OWN_CA), next.ca);
        set(&mut secret, [(NEXT_CHAIN, &next.chain), (NEXT_KEY, &next.key), (NEXT_CA, &next.ca)]);
        set(&mut secret, [(CA_BUNDLE, &bundle)]);
        annotations(&mut secret).insert(NEXT_VALIDITY.into(), format_validity(&next));
        Ok(secret)
    }

    async fn write(&self, secret: &Secret) -> anyhow::Result<Secret> {
        let params = PostParams::default();
        let written = match secret.metadata.resource_version {
            None => self.secrets.create(&params, secret).await,
            Some(_) => self.secrets.replace(&self.settings.secret, &params, secret).await,
        };
        written.with_context(|| self.secret_title())
    }

    /// Writes the CA certificates and the path into the webhook configuration. `false` if there is no such configuration.
    async fn publish(&mut self, bundle: &str, now: u64) -> anyhow::Result<bool> {
        let name = &self.settings.webhook_configuration;
        let found = self.configurations.get_opt(name).await;
        let found = found.with_context(|| format!("ValidatingWebhookConfiguration {name}"))?;
        let Some(mut configuration) = found else {
            if !std::mem::replace(&mut self.missing_logged, true) {
                tracing::warn!(
                    name,
                    "the ValidatingWebhookConfiguration does not exist, so policies are not checked at admission: \
                     apply the chart, or set --webhook-configuration"
                );
            }
            return Ok(false);
        };
        self.missing_logged = false;
        let before = configuration.clone();
        let (bundle, path) = (ByteString(bundle.as_bytes().to_vec()), self.tokens.path(now));
        for webhook in configuration.webhooks.iter_mut().flatten() {
            webhook.client_config.ca_bundle = Some(bundle.clone());
            path.iter().for_each(|path| set_path(&mut webhook.client_config, path));
        }
        if configuration != before {
            let written = self.configurations.replace(name, &PostParams::default(), &configuration).await;
            written.with_context(|| format!("ValidatingWebhookConfiguration {name}"))?;
            tracing::info!(name, "wrote the CA certificates and the path into the ValidatingWebhookConfiguration");
        }
        Ok(true)
    }
}

/// Adds a key for tokens to a Secret that has none. `None` if there is nothing to write.
fn with_token_key(changed: Option<Secret>, before: Option<&Secret>) -> anyhow::Result<Option<Secret>> {
    let has_key = |secret: &Secret| !text(secret, TOKEN_KEY).is_empty();
    match changed.or_else(|| before.filter(|before| !has_key(before)).cloned()) {
        Some(mut secret) if !has_key(&secret) => {
            secret.data.get_or_insert_default().insert(TOKEN_KEY.into(), ByteString(generate_key()?));
            Ok(Some(secret))
        }
        unchanged => Ok(unchanged),
    }
}

fn set_path(client: &mut WebhookClientConfig, path: &str) {
    if let Some(service) = &mut client.service {
        service.path = Some(path.to_owned());
    }
    // A webhook outside the cluster has a URL.
    if let Some(url) = &mut client.url {
        let start = url.find("://").map_or(0, |at| at + 3);
        let end = url[start..].find('/').map_or(url.len(), |at| start + at);
        url.replace_range(end.., path);
    }
}

/// The CA of the previous certificate stays trusted until the next rotation, because another replica may still serve it.
fn promoted_secret(before: &Secret) -> Secret {
    let mut secret = before.clone();
    let next = [NEXT_CHAIN, NEXT_KEY, NEXT_CA].map(|key| text(before, key));
    set(&mut secret, [(CHAIN, &next[0]), (KEY, &next[1]), (OWN_CA, &next[2])]);
    if let Some(data) = &mut secret.data {
        [NEXT_CHAIN, NEXT_KEY, NEXT_CA].iter().for_each(|key| drop(data.remove(*key)));
    }
    let validity = annotation(before, NEXT_VALIDITY).unwrap_or_default().to_owned();
    let annotations = annotations(&mut secret);
    annotations.insert(VALIDITY.into(), validity);
    annotations.remove(NEXT_VALIDITY);
    annotations.remove(NEXT_PUBLISHED_AT);
    secret
}

fn is_next_unpublished(secret: &Secret) -> bool {
    !text(secret, NEXT_CHAIN).is_empty() && annotation(secret, NEXT_PUBLISHED_AT).is_none()
}

fn text(secret: &Secret, key: &str) -> String {
    let bytes = secret.data.as_ref().and_then(|data| data.get(key));
    bytes.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).unwrap_or_default()
}

fn set<const N: usize>(secret: &mut Secret, pairs: [(&str, &String); N]) {
    let data = secret.data.get_or_insert_default();
    for (key, value) in pairs {
        data.insert(key.into(), ByteString(value.as_bytes().to_vec()));
    }
}

fn annotations(secret: &mut Secret) -> &mut BTreeMap<String, String> {
    secret.metadata.annotations.get_or_insert_default()
}

fn annotation<'a>(secret: &'a Secret, key: &str) -> Option<&'a str> {
    secret.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// `not_before/not_after`, in seconds since the Unix epoch.
fn format_validity(certificate: &Certificate) -> String {
    format!("{}/{}", certificate.not_before, certificate.not_after)
}

fn validity(secret: &Secret, key: &str) -> Option<(u64, u64)> {
    let (not_before, not_after) = annotation(secret, key)?.split_once('/')?;
    Some((not_before.parse().ok()?, not_after.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::admissionregistration::v1::ServiceReference;

    #[test]
    fn the_path_is_written_for_services_and_urls() {
        let service = ServiceReference { name: "c".into(), namespace: "n".into(), ..ServiceReference::default() };
        let mut client = WebhookClientConfig { service: Some(service), ..WebhookClientConfig::default() };
        set_path(&mut client, "/admit/1");
        assert_eq!(client.service.unwrap().path.as_deref(), Some("/admit/1"));
        for url in ["https://10.0.0.1:9443", "https://10.0.0.1:9443/", "https://10.0.0.1:9443/admit/0"] {
            let mut client = WebhookClientConfig { url: Some(url.into()), ..WebhookClientConfig::default() };
            set_path(&mut client, "/admit/1");
            assert_eq!(client.url.as_deref(), Some("https://10.0.0.1:9443/admit/1"));
        }
    }

    #[test]
    fn a_secret_without_a_token_key_gets_one_and_keeps_it() {
        let added = with_token_key(None, Some(&Secret::default())).unwrap().expect("the key is written");
        assert_eq!(added.data.as_ref().unwrap()[TOKEN_KEY].0.len(), 32);
        assert_eq!(with_token_key(None, Some(&added)).unwrap(), None);
        assert_eq!(with_token_key(Some(added.clone()), None).unwrap(), Some(added));
    }
}
