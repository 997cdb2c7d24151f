//! Keeps the certificate: in a Secret that the replicas share, its authorities in the webhook's configuration. Every
//! replica shows what the Secret says; the leader makes, stages and promotes.

use crate::certificate::{Certificate, Step, make, step};
use crate::settings::Settings;
use crate::webhook::Shown;
use anyhow::Context;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
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
/// Of whoever may be shown now: the current authority, the next, and the one before.
const AUTHORITIES: &str = "ca.crt";
const OWN_AUTHORITY: &str = "own-ca.crt";
const NEXT_CHAIN: &str = "next.crt";
const NEXT_KEY: &str = "next.key";
const NEXT_AUTHORITY: &str = "next-ca.crt";
const LIFE: &str = "beeline.dev/certificate-life";
const NEXT_LIFE: &str = "beeline.dev/next-certificate-life";
/// Since when the webhook's configuration names the next authority.
const STAGED: &str = "beeline.dev/staged";

pub struct Keep {
    secrets: Api<Secret>,
    configurations: Api<ValidatingWebhookConfiguration>,
    settings: Settings,
    shown: Arc<Shown>,
    /// What is shown now.
    chain: String,
    /// Said once.
    missing: bool,
}

impl Keep {
    pub fn new(client: Client, settings: &Settings, shown: Arc<Shown>) -> Keep {
        Keep {
            secrets: Api::namespaced(client.clone(), &settings.namespace),
            configurations: Api::all(client),
            settings: settings.clone(),
            shown,
            chain: String::new(),
            missing: false,
        }
    }

    pub async fn run(mut self, mut leader: watch::Receiver<bool>) -> anyhow::Result<()> {
        let tick = (self.settings.certificate_life / 60).clamp(Duration::from_millis(500), Duration::from_secs(10));
        loop {
            let leads = *leader.borrow_and_update();
            if let Err(error) = self.round(leads).await {
                tracing::warn!("the webhook's certificate cannot be kept: {error:#}");
            }
            tokio::select! {
                () = tokio::time::sleep(tick) => {}
                changed = leader.changed() => changed?,
            }
        }
    }

    async fn round(&mut self, leads: bool) -> anyhow::Result<()> {
        let mut secret = self.secrets.get_opt(&self.settings.secret).await.with_context(|| self.secret_name())?;
        if leads {
            secret = Some(self.advance(secret).await?);
        }
        let Some(secret) = secret else { return Ok(()) };
        let (chain, key) = (text(&secret, CHAIN), text(&secret, KEY));
        if !chain.is_empty() && chain != self.chain {
            self.shown.set(&chain, &key).with_context(|| self.secret_name())?;
            self.chain = chain;
            tracing::info!(
                "shows a certificate that holds until {}",
                life(&secret, LIFE).map_or(0, |(_, until)| until)
            );
        }
        Ok(())
    }

    fn secret_name(&self) -> String {
        format!("Secret {}/{}", self.settings.namespace, self.settings.secret)
    }

    /// One step of the certificate's life, and the authorities where the API server looks for them.
    async fn advance(&mut self, secret: Option<Secret>) -> anyhow::Result<Secret> {
        let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
        let current = secret.as_ref().filter(|secret| !text(secret, CHAIN).is_empty());
        let current = current.and_then(|secret| life(secret, LIFE));
        let staged = secret.as_ref().and_then(|secret| annotation(secret, STAGED)?.parse().ok());
        let has_next = secret.as_ref().is_some_and(|secret| !text(secret, NEXT_CHAIN).is_empty());
        let next = match step(now, current, staged, self.settings.certificate_life) {
            Step::Make => Some(self.made(secret.as_ref(), now)?),
            Step::Stage if !has_next => secret.as_ref().map(|secret| self.staged(secret, now)).transpose()?,
            Step::Promote => secret.as_ref().map(promoted),
            Step::Stage | Step::Keep => None,
        };
        let mut secret = match next {
            Some(next) => self.write(&next).await?,
            None => secret.context("there is no Secret to keep")?,
        };
        let trusted = self.trust(&text(&secret, AUTHORITIES)).await?;
        // Only from now on does the API server begin to hear of the next one.
        if trusted && has_next_unmarked(&secret) {
            annotations(&mut secret).insert(STAGED.into(), now.to_string());
            secret = self.write(&secret).await?;
        }
        Ok(secret)
    }

    fn made(&self, before: Option<&Secret>, now: u64) -> anyhow::Result<Secret> {
        let made = make(&self.settings.webhook_names, now, self.settings.certificate_life)?;
        let mut secret = before.cloned().unwrap_or_else(|| Secret {
            metadata: ObjectMeta { name: Some(self.settings.secret.clone()), ..ObjectMeta::default() },
            type_: Some("Opaque".into()),
            ..Secret::default()
        });
        secret.data = None;
        // Others' stay: whoever made it empty (Helm, say) knows it by them.
        annotations(&mut secret).retain(|key, _| ![LIFE, NEXT_LIFE, STAGED].contains(&key.as_str()));
        set(&mut secret, [(CHAIN, &made.chain), (KEY, &made.key), (OWN_AUTHORITY, &made.authority)]);
        set(&mut secret, [(AUTHORITIES, &made.authority)]);
        annotations(&mut secret).insert(LIFE.into(), show_life(&made));
        tracing::info!("made a certificate for the webhook");
        Ok(secret)
    }

    fn staged(&self, before: &Secret, now: u64) -> anyhow::Result<Secret> {
        let made = make(&self.settings.webhook_names, now, self.settings.certificate_life)?;
        let mut secret = before.clone();
        let both = format!("{}{}", text(before, OWN_AUTHORITY), made.authority);
        set(&mut secret, [(NEXT_CHAIN, &made.chain), (NEXT_KEY, &made.key), (NEXT_AUTHORITY, &made.authority)]);
        set(&mut secret, [(AUTHORITIES, &both)]);
        annotations(&mut secret).insert(NEXT_LIFE.into(), show_life(&made));
        Ok(secret)
    }

    async fn write(&self, secret: &Secret) -> anyhow::Result<Secret> {
        let params = PostParams::default();
        let written = match secret.metadata.resource_version {
            None => self.secrets.create(&params, secret).await,
            Some(_) => self.secrets.replace(&self.settings.secret, &params, secret).await,
        };
        written.with_context(|| self.secret_name())
    }

    /// `Ok(true)`: the configuration names exactly these.
    async fn trust(&mut self, authorities: &str) -> anyhow::Result<bool> {
        let name = &self.settings.configuration;
        let found = self.configurations.get_opt(name).await;
        let found = found.with_context(|| format!("ValidatingWebhookConfiguration {name}"))?;
        let Some(mut configuration) = found else {
            if !std::mem::replace(&mut self.missing, true) {
                tracing::warn!(
                    "there is no ValidatingWebhookConfiguration {name}: policies are admitted without us; apply the chart, or give --webhook-configuration"
                );
            }
            return Ok(false);
        };
        self.missing = false;
        let wanted = Some(ByteString(authorities.as_bytes().to_vec()));
        let hooks = configuration.webhooks.iter_mut().flatten();
        let mut differs = false;
        for hook in hooks.filter(|hook| hook.client_config.ca_bundle != wanted) {
            hook.client_config.ca_bundle = wanted.clone();
            differs = true;
        }
        if differs {
            let written = self.configurations.replace(name, &PostParams::default(), &configuration).await;
            written.with_context(|| format!("ValidatingWebhookConfiguration {name}"))?;
            tracing::info!("wrote the authorities into the ValidatingWebhookConfiguration {name}");
        }
        Ok(true)
    }
}

/// The one before stays trusted until the next change: another replica may still show it.
fn promoted(before: &Secret) -> Secret {
    let mut secret = before.clone();
    let next = [NEXT_CHAIN, NEXT_KEY, NEXT_AUTHORITY].map(|key| text(before, key));
    set(&mut secret, [(CHAIN, &next[0]), (KEY, &next[1]), (OWN_AUTHORITY, &next[2])]);
    if let Some(data) = &mut secret.data {
        [NEXT_CHAIN, NEXT_KEY, NEXT_AUTHORITY].iter().for_each(|key| drop(data.remove(*key)));
    }
    let life = annotation(before, NEXT_LIFE).unwrap_or_default().to_owned();
    let notes = annotations(&mut secret);
    notes.insert(LIFE.into(), life);
    notes.remove(NEXT_LIFE);
    notes.remove(STAGED);
    secret
}

fn has_next_unmarked(secret: &Secret) -> bool {
    !text(secret, NEXT_CHAIN).is_empty() && annotation(secret, STAGED).is_none()
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

/// `from/until`, in seconds since the epoch.
fn show_life(made: &Certificate) -> String {
    format!("{}/{}", made.from, made.until)
}

fn life(secret: &Secret, key: &str) -> Option<(u64, u64)> {
    let (from, until) = annotation(secret, key)?.split_once('/')?;
    Some((from.parse().ok()?, until.parse().ok()?))
}
