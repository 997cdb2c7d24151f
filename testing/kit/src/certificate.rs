//! Keys and certificates, made anew for each cluster: it lives shorter than any of them, and none can leak into another.

use std::{net::IpAddr, path::Path};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};

use crate::{
    plan::{CONTROL, DOMAIN, KUBERNETES},
    state,
};

/// A key, and what it is good for, both as PEM.
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Pair {
    fn save(&self, dir: &Path, name: &str) -> Result<()> {
        state::write(&dir.join(format!("{name}.crt")), &self.certificate)?;
        state::write(&dir.join(format!("{name}.key")), &self.key)
    }
}

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pair: Pair,
}

impl Authority {
    pub fn new(name: &str) -> Result<Authority> {
        let key = KeyPair::generate()?;
        let mut params = subject(name, None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key)?.pem();
        let pair = Pair { certificate, key: key.serialize_pem() };
        Ok(Authority { issuer: Issuer::new(params, key), pair })
    }

    /// A user of the API: the name is the user's, the organisation its group.
    pub fn client(&self, name: &str, group: Option<&str>) -> Result<Pair> {
        let mut params = subject(name, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    pub fn server(&self, name: &str, addresses: &[IpAddr], names: &[String]) -> Result<Pair> {
        let mut params = subject(name, None);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names = addresses.iter().map(|address| SanType::IpAddress(*address)).collect();
        for name in names {
            params.subject_alt_names.push(SanType::DnsName(name.as_str().try_into()?));
        }
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Pair> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        let key = KeyPair::generate()?;
        Ok(Pair { certificate: params.signed_by(&key, &self.issuer)?.pem(), key: key.serialize_pem() })
    }
}

fn subject(name: &str, group: Option<&str>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params
}

/// Writes what a control plane's programs read, and gives the authority that signs users.
pub fn make(dir: &Path) -> Result<Authority> {
    let authority = Authority::new("kit")?;
    authority.pair.save(dir, "ca")?;
    let front = Authority::new("kit-front-proxy")?;
    front.pair.save(dir, "front-proxy-ca")?;
    front.client("front-proxy-client", None)?.save(dir, "front-proxy-client")?;
    authority.client("kube-apiserver-kubelet-client", Some("system:masters"))?.save(dir, "kubelet-client")?;
    api_server(&authority)?.save(dir, "apiserver")?;
    let accounts = KeyPair::generate()?;
    state::write(&dir.join("sa.key"), accounts.serialize_pem())?;
    state::write(&dir.join("sa.pub"), accounts.public_key_pem())?;
    Ok(authority)
}

fn api_server(authority: &Authority) -> Result<Pair> {
    let loopback = "127.0.0.1".parse()?;
    let addresses: Vec<IpAddr> = CONTROL.into_iter().chain(KUBERNETES).chain([loopback]).collect();
    let short = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"].map(str::to_owned);
    let full = format!("kubernetes.default.svc.{DOMAIN}");
    authority.server("kube-apiserver", &addresses, &[&short[..], &[full]].concat())
}

/// For the tests' web server, which is reached by the name localhost inside its pod.
pub fn localhost() -> Result<Pair> {
    Authority::new("kit-localhost")?.server("localhost", &["127.0.0.1".parse()?], &["localhost".to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_pem_and_no_two_are_alike() {
        let authority = Authority::new("test").unwrap();
        let one = authority.client("n1", Some("system:nodes")).unwrap();
        let other = api_server(&authority).unwrap();
        assert!(one.certificate.starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(one.key.starts_with("-----BEGIN PRIVATE KEY-----"));
        assert_ne!(one.key, other.key);
    }
}
