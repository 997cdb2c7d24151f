//! Keys and certificates. Each cluster gets new ones.

use std::{net::IpAddr, path::Path};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};

use crate::{
    address_plan::{CONTROL, DOMAIN, KUBERNETES},
    state,
};

/// A certificate and its key, both as PEM.
pub struct CertificatePair {
    pub certificate: String,
    pub key: String,
}

impl CertificatePair {
    fn save(&self, dir: &Path, name: &str) -> Result<()> {
        state::write(&dir.join(format!("{name}.crt")), &self.certificate)?;
        state::write(&dir.join(format!("{name}.key")), &self.key)
    }
}

pub struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    pub pair: CertificatePair,
}

impl CertificateAuthority {
    pub fn new(name: &str) -> Result<CertificateAuthority> {
        let key = KeyPair::generate()?;
        let mut params = subject(name, None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key)?.pem();
        let pair = CertificatePair { certificate, key: key.serialize_pem() };
        Ok(CertificateAuthority { issuer: Issuer::new(params, key), pair })
    }

    /// A client certificate: the common name is the user, the organisation its group.
    pub fn client(&self, name: &str, group: Option<&str>) -> Result<CertificatePair> {
        let mut params = subject(name, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    pub fn server(&self, name: &str, addresses: &[IpAddr], names: &[String]) -> Result<CertificatePair> {
        let mut params = subject(name, None);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names = addresses.iter().map(|address| SanType::IpAddress(*address)).collect();
        for name in names {
            params.subject_alt_names.push(SanType::DnsName(name.as_str().try_into()?));
        }
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<CertificatePair> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        let key = KeyPair::generate()?;
        Ok(CertificatePair { certificate: params.signed_by(&key, &self.issuer)?.pem(), key: key.serialize_pem() })
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

/// Writes the files that a control plane needs, and returns the authority that signs client certificates.
pub fn make(dir: &Path) -> Result<CertificateAuthority> {
    let authority = CertificateAuthority::new("kit")?;
    authority.pair.save(dir, "ca")?;
    let front = CertificateAuthority::new("kit-front-proxy")?;
    front.pair.save(dir, "front-proxy-ca")?;
    front.client("front-proxy-client", None)?.save(dir, "front-proxy-client")?;
    authority.client("kube-apiserver-kubelet-client", Some("system:masters"))?.save(dir, "kubelet-client")?;
    api_server(&authority)?.save(dir, "apiserver")?;
    let service_accounts = KeyPair::generate()?;
    state::write(&dir.join("sa.key"), service_accounts.serialize_pem())?;
    state::write(&dir.join("sa.pub"), service_accounts.public_key_pem())?;
    Ok(authority)
}

fn api_server(authority: &CertificateAuthority) -> Result<CertificatePair> {
    let loopback = "127.0.0.1".parse()?;
    let addresses: Vec<IpAddr> = CONTROL.into_iter().chain(KUBERNETES).chain([loopback]).collect();
    let short = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"].map(str::to_owned);
    let full = format!("kubernetes.default.svc.{DOMAIN}");
    authority.server("kube-apiserver", &addresses, &[&short[..], &[full]].concat())
}

/// Certificate of agnhost's web server, which tests reach as localhost inside its pod.
pub fn localhost() -> Result<CertificatePair> {
    CertificateAuthority::new("kit-localhost")?.server("localhost", &["127.0.0.1".parse()?], &["localhost".to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_pem_and_keys_are_unique() {
        let authority = CertificateAuthority::new("test").unwrap();
        let one = authority.client("n1", Some("system:nodes")).unwrap();
        let other = api_server(&authority).unwrap();
        assert!(one.certificate.starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(one.key.starts_with("-----BEGIN PRIVATE KEY-----"));
        assert_ne!(one.key, other.key);
    }
}
