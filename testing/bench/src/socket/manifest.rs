//! The measured cluster as a directory of manifests.

use std::{fmt::Write as _, fs, ops::Range, path::Path};

use anyhow::{Context, Result};
use beeline_model::Protocol;

use super::objects::{BACKENDS, POD_PORT, SERVICE_PORT, pod_address, service_address};

/// Number of Services in one file.
const PER_FILE: u32 = 100;

pub fn write_folder(folder: &Path, services: u32) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for first in (0..services).step_by(PER_FILE as usize) {
        let mut text = String::new();
        for service in first..services.min(first + PER_FILE) {
            write_service(&mut text, service, Protocol::Tcp, service * BACKENDS..(service + 1) * BACKENDS)?;
        }
        fs::write(folder.join(format!("services-{first:06}.yaml")), text)?;
    }
    Ok(())
}

/// Writes the file of one UDP Service atomically.
pub fn write_file(folder: &Path, service: u32, pods: Range<u32>) -> Result<()> {
    let mut text = String::new();
    write_service(&mut text, service, Protocol::Udp, pods)?;
    let (temporary, file) = (folder.join(".changing"), folder.join("changing.yaml"));
    fs::write(&temporary, text)?;
    Ok(fs::rename(temporary, file)?)
}

fn write_service(text: &mut String, service: u32, protocol: Protocol, pods: Range<u32>) -> Result<()> {
    let address = service_address(service);
    write!(
        text,
        "apiVersion: v1\nkind: Service\nmetadata: {{name: service-{service}, namespace: bench}}\nspec:\n  \
         clusterIP: {address}\n  selector: {{app: service-{service}}}\n  \
         ports: [{{name: main, port: {SERVICE_PORT}, targetPort: {POD_PORT}, protocol: {protocol}}}]\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: service-{service}-x\n  \
         namespace: bench\n  labels: {{kubernetes.io/service-name: service-{service}}}\naddressType: IPv4\n\
         ports: [{{name: main, port: {POD_PORT}, protocol: {protocol}}}]\nendpoints:"
    )?;
    text.push_str(if pods.is_empty() { " []\n" } else { "\n" });
    for pod in pods {
        let (address, node) = (pod_address(pod), pod % 16);
        writeln!(text, "- {{addresses: [{address}], nodeName: node-{node}, conditions: {{ready: true}}}}")?;
    }
    text.push_str("---\n");
    Ok(())
}
