//! A chart of horizontal bars with their values, as SVG text: one group of bars per size, on a logarithmic axis.

use crate::plot::Series;

const WIDTH: f64 = 860.0;
/// Horizontal position of the axis, right of the names of the groups.
const LEFT: f64 = 140.0;
/// Space for the value right of the longest bar.
const VALUE_WIDTH: f64 = 80.0;
const TOP: f64 = 92.0;
const BAR: f64 = 16.0;
const BAR_STEP: f64 = 19.0;
const GROUP_GAP: f64 = 16.0;
const COLOURS: [&str; 3] = ["#1a7f37", "#bc4c00", "#6e7781"];
const STYLE: &str = "text{font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;fill:#1f2328;font-size:13px}\
                     .h{font-size:17px;font-weight:600}.s{font-size:12px;fill:#57606a}.grid{stroke:#d0d7de}\
                     .v{paint-order:stroke;stroke:#ffffff;stroke-width:4px}";

pub struct BarChart<'a> {
    pub title: &'a str,
    /// What a bar's length means.
    pub axis: &'a str,
    /// The value at which bars begin.
    pub start: f64,
    pub groups: &'a [String],
    pub series: &'a [Series],
    /// The text of a value.
    pub label: fn(f64) -> String,
}

impl BarChart<'_> {
    pub fn to_svg(&self) -> String {
        let bottom = TOP + self.groups.len() as f64 * self.group_height();
        let height = bottom + 30.0;
        let body: String = (0..self.groups.len()).map(|group| self.group(group)).collect();
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
             role=\"img\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
             <text class=\"h\" x=\"14\" y=\"28\">{title}</text>\n{legend}{grid}{body}</svg>\n",
            title = self.title,
            legend = self.legend(),
            grid = self.grid(bottom),
        )
    }

    fn group_height(&self) -> f64 {
        self.series.len() as f64 * BAR_STEP + GROUP_GAP
    }

    fn highest(&self) -> f64 {
        self.series.iter().flat_map(|series| &series.values).copied().fold(self.start * 10.0, f64::max)
    }

    /// Horizontal position of a value.
    fn x(&self, value: f64) -> f64 {
        let share = (value.max(self.start) / self.start).ln() / (self.highest() / self.start).ln();
        round(LEFT + share * (WIDTH - LEFT - VALUE_WIDTH))
    }

    fn legend(&self) -> String {
        let mut text = format!("<text class=\"s\" x=\"14\" y=\"48\">{}</text>\n", self.axis);
        let width = |series: &Series| 48.0 + 7.0 * series.name.len() as f64;
        let mut x = LEFT;
        for (series, colour) in self.series.iter().zip(COLOURS) {
            text.push_str(&format!(
                "<rect x=\"{x}\" y=\"64\" width=\"14\" height=\"12\" fill=\"{colour}\"/><text x=\"{}\" y=\"75\">{}</text>\n",
                x + 20.0,
                series.name
            ));
            x += width(series);
        }
        text
    }

    /// A line at the start and at each power of ten above it.
    fn grid(&self, bottom: f64) -> String {
        let values = std::iter::successors(Some(self.start), |value| Some(value * 10.0));
        let line = |value: f64| {
            let (x, text) = (self.x(value), (self.label)(value));
            format!(
                "<path class=\"grid\" d=\"M{x} {TOP}V{bottom}\"/><text class=\"s\" x=\"{x}\" y=\"{}\" \
                 text-anchor=\"middle\">{text}</text>\n",
                bottom + 18.0
            )
        };
        values.take_while(|value| *value <= self.highest()).map(line).collect()
    }

    fn group(&self, group: usize) -> String {
        let top = TOP + GROUP_GAP / 2.0 + group as f64 * self.group_height();
        let middle = top + self.series.len() as f64 * BAR_STEP / 2.0 + 3.0;
        let name = &self.groups[group];
        let mut text = format!("<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{name}</text>\n", LEFT - 10.0);
        for (index, (series, colour)) in self.series.iter().zip(COLOURS).enumerate() {
            let (value, y) = (series.values[group], top + index as f64 * BAR_STEP);
            let width = round(self.x(value) - LEFT);
            let label = if value > 0.0 { (self.label)(value) } else { "not measured".to_owned() };
            text.push_str(&format!(
                "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{width}\" height=\"{BAR}\" fill=\"{colour}\"/>\
                 <text class=\"v\" x=\"{}\" y=\"{}\">{label}</text>\n",
                round(LEFT + width + 6.0),
                y + 13.0
            ));
        }
        text
    }
}

/// One decimal is enough for a position.
fn round(position: f64) -> f64 {
    (position * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_lengths_on_a_logarithmic_axis_and_show_their_values() {
        let series = ["a", "b", "c"].into_iter().zip([10.0, 1000.0, 0.0]);
        let series: Vec<Series> =
            series.map(|(name, value)| Series { name: name.into(), values: vec![value] }).collect();
        let chart = BarChart {
            title: "A title",
            axis: "",
            start: 1.0,
            groups: &["10 services".into()],
            series: &series,
            label: |value| format!("{value} ms"),
        };
        assert_eq!(chart.x(1.0), LEFT);
        assert_eq!(chart.x(1000.0), WIDTH - VALUE_WIDTH);
        assert_eq!(chart.x(10.0), round(LEFT + (WIDTH - LEFT - VALUE_WIDTH) / 3.0));
        let svg = chart.to_svg();
        for text in [">10 services<", ">1000 ms<", ">not measured<", "width=\"0\"", "<title>A title</title>"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
    }
}
